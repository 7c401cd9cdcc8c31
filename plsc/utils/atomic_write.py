"""Writing beside, then renaming: whoever opens a path finds its old content or the whole new one.

replace_file(Path("report.html"), page)
with atomic_write("faces.rec") as beside, open(beside, "xb") as file:
    ...
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike) -> Iterator[Path]:
    """Yield the name `path`.tmp for a new file or folder, and rename that to `path` when the block ends well.

    What has that name, such as the leftover of a killed process, is removed first. Create the file with "xb": then no link that
    somebody puts there is followed. Where the block raises, nothing is left under that name.
    """
    path = Path(path)
    beside = path.with_name(f"{path.name}.tmp")
    remove(beside)
    try:
        yield beside
        os.replace(beside, path)
    finally:
        with contextlib.suppress(OSError):  # an error of the block is the one to be seen
            remove(beside)


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` to `path`, the whole of it or nothing."""
    with atomic_write(path) as beside, open(beside, "xb") as file:
        file.write(content)


def remove(path: Path) -> None:
    """Remove a file, a link (not what it points to) or a folder; there may be none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
