"""Check whether files fit on the disk, for checkpoints before the first step and before each save.

Try it: `python -c "from plsc.utils.disk import refuse_full_disk; refuse_full_disk('.', 10**18)"`.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from plsc.errors import UserError

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)  # disk, limit of a file's size, quota


def nearest_folder(folder: str | Path) -> Path:
    """Return `folder`, or its nearest parent that exists: a new folder would be on the same disk."""
    folder = Path(folder)
    return next((path for path in (folder, *folder.absolute().parents) if path.is_dir()), Path("/"))


def free_bytes(folder: str | Path) -> int:
    """Return the free bytes on the disk of `folder`, which need not exist yet."""
    return shutil.disk_usage(nearest_folder(folder)).free


def need_and_free(folder: Path, need: int) -> tuple[bool, str]:
    """Return whether `need` bytes fit on the disk of `folder`, and the text "need 51 MB, free 20 MB"."""
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
    """Raise UserError if `what`, of `need` bytes, does not fit on the disk; else return the free bytes.

    Args:
        left: bytes of files there that will be removed before; they count as free.
    """
    free = free_bytes(folder) + left
    if need > free:
        raise UserError(
            f"{folder}: no space for {what} ({_numbers(need, free)}); free some space, or {remedy}"
        )
    return free


def saves_ahead(step: int, last: int, *every: int | None, most: int) -> int:
    """Count, up to `most`, the steps after `step` that are saved: the last, and each multiple of an
    `every`."""
    steps = {last}
    for period in filter(None, every):
        steps.update(range(step - step % period + period, last + 1, period)[:most])
    return min(most, len(steps))


def check_space(folder: Path, need: int, saves: int, keep: int, what: str = "a checkpoint") -> str | None:
    """Check that `folder` can hold the checkpoints of a run; return a warning if only some fit, else None.

    Raises UserError if not even one fits. Too little space for a later one is a warning, since the user may
    free some until then.

    Args:
        need: bytes of each.
        saves: how many will be written, counted up to keep + 1.
        keep: how many stay, beside the one that is being written.
    """
    # Files of a killed save: the next save removes them before it writes.
    left = sum(file.stat().st_size for file in folder.glob("step-*.tmp/*"))
    free = refuse_full_disk(folder, need, what, left=left)
    present = sum(1 for path in folder.glob("step-*") if path.suffix in ("", ".old"))
    more = max(1, min(saves, keep + 1 - present))
    fitting = free // need
    if more <= fitting:
        return None
    lower = fitting + present - 1
    remedy = f"Checkpoint.keep={lower}" if lower else "another Global.output_dir"
    return (
        f"{folder}: space for {fitting} of the {more} checkpoints that the run writes before the first is deleted (each: "
        f"{_numbers(need, free)}; Checkpoint.keep: {keep}): the next cannot be saved then; free some space, or set {remedy}"
    )


def full_disk(folder: Path, need: int, error: OSError | None = None) -> OSError | None:
    """Return the error of a full disk for a save of `need` bytes; None for another error, or if they fit.

    Args:
        error: what the save raised; None: nothing has been written yet.
    """
    fits, numbers = need_and_free(folder, need)
    if error is None:
        return None if fits else OSError(errno.ENOSPC, f"No space left on device ({numbers})")
    return OSError(f"{error} ({numbers})") if error.errno in FULL else None
