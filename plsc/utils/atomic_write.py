"""Write a file beside its path and rename it, so that a reader finds the old content or the whole new one.

replace_file(Path("report.html"), page)
with atomic_write("faces.rec") as beside, open(beside, "xb") as file:
    ...
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike) -> Iterator[Path]:
    """Yield the name `path`.tmp for a new file or folder, and rename that to `path` when the block ends well.

    The folder that it lies in is made if there is none.
    A file or folder of that name, such as one that a killed process left, is removed first. Create the file
    with "xb", so that no link is followed. If the block raises, nothing is left under that name.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.tmp")
    remove(beside)
    try:
        yield beside
        os.replace(beside, path)
    finally:
        with contextlib.suppress(OSError):  # an error of the block must be the one that is seen
            remove(beside)


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` to `path`: all of it or nothing, after a power failure too."""
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
