"""Check whether files fit on the disk, for checkpoints and for banks of class centres.

Try it: `python -c "from plsc.utils.disk import no_space; print(no_space('.', 10**18))"`.
"""

from __future__ import annotations

import shutil
from pathlib import Path


def free_bytes(folder: str | Path) -> int:
    """Return the free bytes on the disk of `folder`, which need not exist yet."""
    folder = Path(folder)
    there = next((path for path in (folder, *folder.absolute().parents) if path.is_dir()), "/")
    return shutil.disk_usage(there).free


def no_space(folder: str | Path, need: int) -> str | None:
    """Return "need 51 MB, free 20 MB" if so many bytes do not fit on the disk of `folder`, else None."""
    free = free_bytes(folder)
    return f"need {need / 1e6:.3g} MB, free {free / 1e6:.3g} MB" if need > free else None
