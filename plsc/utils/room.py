"""Say how much room memory and disk have.

Try it: `python -c "from plsc.utils.room import *; print(available_bytes(), free_bytes('.'))"`.
"""

import shutil
from pathlib import Path


def available_bytes() -> int:
    """Return the bytes of memory that programs of this machine can still get (Linux)."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024


def free_bytes(folder: str | Path) -> int:
    """Return the free bytes on the disk of `folder`, which need not exist yet."""
    folder = Path(folder).absolute()
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.is_dir())).free
