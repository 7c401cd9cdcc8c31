"""Write a file under a temporary name and rename it. A reader finds either the old or the new content.

Try it:

replace_file(Path("report.html"), page)
with atomic_write("faces.rec") as beside, open(beside, "xb") as file:
    ...
"""

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from plsc.errors import UserError, escape


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike, *, new: bool = False) -> Iterator[Path]:
    """Yield a temporary name for a new file or folder, and rename it to `path` if the block ends normally.

    The temporary name is in a folder `.NAME.RANDOM` beside `path`, so several processes may write to one path
    at once. If a process was killed, the next one removes its folder. If the block raises, nothing remains.
    The parent folder of `path` is created if it does not exist.

    Args:
        path: the file's or folder's final name.
        new: whether to refuse to replace anything. UserError is then raised if `path` exists when the block
            ends.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _folder_beside(path) as folder:
        beside = folder / path.name
        yield beside
        if not new:
            os.replace(beside, path)
        elif not _rename_to_free_name(beside, path):
            raise UserError(f"{escape(path)}: another process has made it meanwhile; nothing was changed")


@contextlib.contextmanager
def _folder_beside(path: Path) -> Iterator[Path]:
    """Make a folder with a random name beside `path`. It is locked, and removed when the block ends.

    The kernel releases a killed process's lock, so an unlocked folder is a leftover.
    """
    start = f".{os.fsdecode(os.fsencode(path.name)[:100])}."
    with os.scandir(path.parent) as entries:
        found = [Path(entry.path) for entry in entries if entry.name.startswith(start)]
    for folder in found:
        if (lock := _lock(folder)) is not None:
            _remove_quietly(folder)
            os.close(lock)
    lock = None
    while lock is None:  # another process may remove the folder as a leftover before it is locked
        folder = Path(tempfile.mkdtemp(prefix=start, dir=path.parent))
        lock = _lock(folder, without_locks=True)
    try:
        yield folder
    finally:
        _remove_quietly(folder)
        os.close(lock)


def _lock(folder: Path, without_locks: bool = False) -> int | None:
    """Lock a folder. Return its file descriptor, or None if it is already locked or no longer exists.

    Args:
        folder: the folder.
        without_locks: whether to return the file descriptor if the file system does not support locks.
    """
    try:
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = folder.exists()
    except BlockingIOError:
        free = False
    except OSError:
        free = without_locks
    if free:
        return file
    os.close(file)
    return None


def _rename_to_free_name(beside: Path, path: Path) -> bool:
    """Rename a file or folder unless `path` exists. Return whether it was renamed."""
    try:
        if beside.is_dir():
            os.rename(beside, path)  # fails if the target is a file or a folder that is not empty
        else:
            os.link(beside, path)
    except OSError as error:
        if os.path.lexists(path):
            return False
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        os.rename(beside, path)  # a file system without hard links
    return True


def replace_file(path: Path, content: bytes) -> None:
    """Write all of `content` to `path` or nothing, even if the power fails."""
    with atomic_write(path) as beside, open(beside, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def remove(path: Path) -> None:
    """Remove a file, a link (not its target) or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_quietly(path: Path) -> None:
    """Remove a folder. An OSError is ignored, so that it does not replace an exception from the block."""
    with contextlib.suppress(OSError):
        remove(path)
