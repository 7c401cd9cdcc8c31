"""One run at a time in an output folder: a lock on its file `.lock`, which says who holds it.

The kernel gives the lock back when its holder ends, however it ends, so a lock of a dead run is no obstacle. Knows no ranks.

Try it twice at the same time: `python -c "from plsc.distributed.lock import hold; held = hold('out'); input()"`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
import stat
from pathlib import Path
from typing import IO

from plsc.errors import UserError, shown

_log = logging.getLogger("plsc")


def hold(folder: str | os.PathLike) -> IO[str]:
    """Take the lock of `folder`, which is made if need be. It is held until the returned file is closed.

    Raises UserError when another process holds it, naming that process. A file system without locks is warned about.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = _open(folder / ".lock")
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR):
            raise UserError(
                f"{folder / '.lock'}: is no plain file; remove it, or name another folder"
            ) from error
        raise UserError(
            f"Global.output_dir: cannot make {folder}: {error.strerror}; name another folder"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = shown(file.read(200).strip()) or "another run"
        file.close()
        raise UserError(
            f"{folder}/ is in use by {holder}: wait until it ends, stop it, or set another Global.output_dir"
        ) from None
    except OSError as error:
        _log.warning("%s: the file system has no locks (%s); nothing keeps a second run out", folder, error)
        return file
    with contextlib.suppress(OSError):  # a full disk: the lock holds, and does not say whose it is
        file.truncate(0)
        file.write(f"pid {os.getpid()} on host {socket.gethostname()}\n")
        file.flush()
    return file


def _open(path: Path) -> IO[str]:
    """Open the file for reading and appending; OSError with ELOOP where it is a link, a pipe or a device."""
    number = os.open(
        path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666
    )
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.ELOOP, "not a plain file")
    return open(number, "a+", encoding="utf-8", errors="replace")
