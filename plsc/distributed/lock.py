"""Lock an output folder for one run at a time, by its file `.lock`, which names the holder.

The kernel releases the lock when its holder ends for any reason, so a dead run does not keep it. This module
knows nothing about ranks.

Try it in two terminals: `python -c "from plsc.distributed.lock import hold; held = hold('out'); input()"`.
"""

import contextlib
import fcntl
import logging
import os
import socket
from pathlib import Path
from typing import IO

from plsc.errors import UserError, escape, writing

FILE = ".lock"
_log = logging.getLogger("plsc")


def hold(folder: str | os.PathLike) -> IO[str]:
    """Take the lock of `folder`, which is created if it is missing, until the returned file is closed.

    Raises UserError, which names the other process, if another process holds it. A file system without locks
    gives a warning.
    """
    folder = Path(folder)
    with writing(f"Global.output_dir: {folder}", remedy="name another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / FILE, "a+", encoding="utf-8", errors="replace")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = escape(file.read(200).strip()) or "another run"
        file.close()
        raise UserError(
            f"{folder}/ is in use by {holder}: wait until it ends, stop it, or set another Global.output_dir"
        ) from None
    except OSError as error:
        _log.warning("%s: has no locks (%s); a second run in this folder cannot be prevented", folder, error)
        return file
    with contextlib.suppress(OSError):  # a full disk: the lock holds, but does not name its holder
        file.truncate(0)
        file.write(f"pid {os.getpid()} on host {socket.gethostname()}\n")
        file.flush()
    return file
