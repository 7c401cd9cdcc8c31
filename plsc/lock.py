"""One run at a time in an output folder: a lock on its file `.lock`, which says who holds it.

The kernel gives the lock back when its holder ends, however it ends, so a lock of a dead run is no obstacle. Knows no ranks.

Try it twice at the same time: `python -c "from plsc.lock import hold; held = hold('out'); input()"`.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
from pathlib import Path
from typing import IO

from plsc.errors import UserError

_log = logging.getLogger("plsc")


def hold(folder: str | os.PathLike) -> IO[str]:
    """Take the lock of `folder`, which is made if need be. It is held until the returned file is closed.

    Raises UserError when another process holds it, naming that process. A file system without locks is warned about.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / ".lock", "a+", encoding="utf-8")  # noqa: SIM115 (the caller's to close)
    except OSError as error:
        raise UserError(
            f"Global.output_dir: cannot make {folder}: {error.strerror}; name another folder"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "another run"
        file.close()
        raise UserError(
            f"{folder}/ is in use by {holder}: wait until it ends, stop it, or set another Global.output_dir"
        ) from None
    except OSError as error:
        _log.warning("%s: the file system has no locks (%s); nothing keeps a second run out", folder, error)
        return file
    file.truncate(0)
    file.write(f"pid {os.getpid()} on host {socket.gethostname()}\n")
    file.flush()
    return file
