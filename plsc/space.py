"""Room on the disk: whether a checkpoint fits, asked before the first step and before each save, and said in numbers.

Try it: `python -c "from plsc.space import refuse_full_disk; refuse_full_disk('.', 10**18)"`.
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


def need_and_free(folder: Path, need: int) -> tuple[bool, str]:
    """Whether `need` bytes fit on the disk of `folder`, which may not be there yet; "need 51 MB, free 20 MB"."""
    free = shutil.disk_usage(there(folder)).free
    return need <= free, f"need {need / 1e6:.3g} MB, free {free / 1e6:.3g} MB"


def refuse_full_disk(
    folder: str | Path,
    need: int,
    what: str = "a checkpoint",
    remedy: str = "set another Global.output_dir",
) -> None:
    """UserError if `what`, of `need` bytes, does not fit on the disk of `folder`."""
    fits, numbers = need_and_free(Path(folder), need)
    if not fits:
        raise UserError(f"{folder}: no space for {what} ({numbers}); make room, or {remedy}")


def full_disk(folder: Path, need: int, error: OSError | None = None) -> OSError | None:
    """The error for a save of `need` bytes, with the numbers in it: of one that failed for lack of space, or, without `error`,
    of one that would; None if it is another error, or there is room."""
    fits, numbers = need_and_free(folder, need)
    if error is None:
        return None if fits else OSError(errno.ENOSPC, f"No space left on device ({numbers})")
    return OSError(f"{error} ({numbers})") if error.errno in FULL else None
