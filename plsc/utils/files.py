"""Open regular files only: reading a pipe may block for ever, and a device has no end.

with open_regular("faces/ann.png") as file: ...
"""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

from plsc.errors import UserError, shown

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: str | os.PathLike, buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading bytes.

    Raises: UserError for a pipe, a device or an impossible path; OSError.
    """
    if "\0" in os.fspath(path):
        raise UserError(
            f"{shown(path)}: is not a path, it contains a zero byte; correct the place that names it"
        )
    return open(path, "rb", buffering=buffering, opener=_descriptor)


def _descriptor(path: str, flags: int) -> int:
    # Before the file is opened, since opening alone may have an effect on a device.
    refuse_irregular(path, os.stat(path).st_mode)
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    try:
        refuse_irregular(path, os.fstat(descriptor).st_mode)
    except UserError:
        os.close(descriptor)
        raise
    return descriptor


def refuse_irregular(path: str | os.PathLike, mode: int) -> None:
    """Raise UserError if `mode`, of os.stat, is that of a pipe, a device or a socket."""
    kind = _KINDS.get(stat.S_IFMT(mode))
    if kind:
        raise UserError(f"{shown(path)}: is {kind}, no regular file; remove it, or name another")


def read_regular(path: str | os.PathLike, most: int | None = None) -> bytes:
    """Read the bytes of a regular file.

    Raises UserError for more than `most` bytes, and what open_regular raises.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise UserError(
                f"{shown(path)}: has {size:,} bytes, must have at most {most:,}; it is something else"
            )
        return file.read()
