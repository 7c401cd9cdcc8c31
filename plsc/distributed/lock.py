"""Lock an output folder for one run at a time, by its file `.lock`, which names the holder.

The kernel releases the lock when its holder ends for any reason, so a dead run does not keep it. Knows no
ranks.

Try it twice at the same time: `python -c "from plsc.distributed.lock import hold; held = hold('out');
input()"`.
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

from plsc.errors import UserError, shown, writing

_log = logging.getLogger("plsc")


def hold(folder: str | os.PathLike) -> IO[str]:
    """Take the lock of `folder`, which is created if it is missing, until the returned file is closed.

    Raises UserError when another process holds it, naming that process. A file system without locks gives a
    warning.
    """
    folder = Path(folder)
    with writing(f"Global.output_dir: {folder}", remedy="name another folder"):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        file = _open(folder / ".lock")
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR):
            raise UserError(
                f"{folder / '.lock'}: is not a plain file; remove it, or name another folder"
            ) from error
        raise UserError(
            f"{folder / '.lock'}: cannot be written: {error.strerror}; name another folder"
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
        _log.warning(
            "%s: the file system has no locks (%s); a second run in this folder cannot be prevented",
            folder,
            error,
        )
        return file
    with contextlib.suppress(OSError):  # a full disk: the lock holds, but does not name its holder
        file.truncate(0)
        file.write(f"pid {os.getpid()} on host {socket.gethostname()}\n")
        file.flush()
    return file


def _open(path: Path) -> IO[str]:
    """Open the file for reading and appending; OSError with ELOOP for a link, a pipe or a device."""
    number = os.open(
        path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666
    )
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.ELOOP, "not a plain file")
    return open(number, "a+", encoding="utf-8", errors="replace")
