"""Room on the disk: whether checkpoints fit, asked before the first step and before each save, and said in numbers.

Try it: `python -c "from plsc.utils.disk import refuse_full_disk; refuse_full_disk('.', 10**18)"`.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from plsc.errors import UserError

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)  # disk, limit of a file's size, quota


def there(folder: str | Path) -> Path:
    """`folder`, or the nearest above it that is there: on whose disk it would be."""
    folder = Path(folder)
    return next((path for path in (folder, *folder.absolute().parents) if path.is_dir()), Path("/"))


def free_bytes(folder: str | Path) -> int:
    """Free on the disk of `folder`, which may not be there yet."""
    return shutil.disk_usage(there(folder)).free


def need_and_free(folder: Path, need: int) -> tuple[bool, str]:
    """Whether `need` bytes fit on the disk of `folder`; "need 51 MB, free 20 MB"."""
    free = free_bytes(folder)
    return need <= free, _numbers(need, free)


def _numbers(need: int, free: int) -> str:
    return f"need {need / 1e6:.3g} MB, free {free / 1e6:.3g} MB"


def refuse_full_disk(
    folder: str | Path,
    need: int,
    what: str = "a checkpoint",
    remedy: str = "set another Global.output_dir",
    left: int = 0,
) -> int:
    """UserError if `what`, of `need` bytes, does not fit on the disk of `folder`, with `left` bytes there that will be removed before; else
    the bytes that are free, these among them."""
    free = free_bytes(folder) + left
    if need > free:
        raise UserError(f"{folder}: no space for {what} ({_numbers(need, free)}); make room, or {remedy}")
    return free


def saves_ahead(step: int, last: int, *every: int | None, most: int) -> int:
    """How many steps after `step` are saved, counted up to `most`: the last, and each that a number of `every` divides."""
    steps = {last}
    for period in filter(None, every):
        steps.update(range(step - step % period + period, last + 1, period)[:most])
    return min(most, len(steps))


def check_room(folder: Path, need: int, saves: int, keep: int, what: str = "a checkpoint") -> str | None:
    """Whether `folder` can hold the checkpoints of a run: UserError if there is no room for one; what to say if there will be none for a
    later one, which somebody may make until then; None if all of them fit.

    Args:
        need: bytes of each. saves: how many will be written, counted up to keep + 1. keep: how many stay, beside the one that is being
            written.
    """
    # By a killed save; the next one removes it before it writes.
    left = sum(file.stat().st_size for file in folder.glob("step-*.tmp/*"))
    free = refuse_full_disk(folder, need, what, left=left)
    present = sum(1 for path in folder.glob("step-*") if path.suffix != ".tmp")
    more, room = max(1, min(saves, keep + 1 - present)), free // need
    if more <= room:
        return None
    lower = room + present - 1
    remedy = f"Checkpoint.keep={lower}" if lower else "another Global.output_dir"
    return (
        f"{folder}: room for {room} of the {more} checkpoints that the run writes before the first is deleted (each: "
        f"{_numbers(need, free)}; Checkpoint.keep: {keep}): the next cannot be saved then; make room meanwhile, or set {remedy}"
    )


def full_disk(folder: Path, need: int, error: OSError | None = None) -> OSError | None:
    """The error for a save of `need` bytes, with the numbers in it: of one that failed for lack of space, or, without `error`,
    of one that would; None if it is another error, or there is room."""
    fits, numbers = need_and_free(folder, need)
    if error is None:
        return None if fits else OSError(errno.ENOSPC, f"No space left on device ({numbers})")
    return OSError(f"{error} ({numbers})") if error.errno in FULL else None
