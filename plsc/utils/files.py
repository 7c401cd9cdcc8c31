"""Open files that others made: regular files only, since a pipe blocks for ever and a device has no end.

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
    """Open a regular file for reading bytes. Raises: UserError for a pipe, a device or an impossible path; OSError."""
    if "\0" in os.fspath(path):
        raise UserError(f"{shown(path)}: is no path, it has a zero byte in it; correct what names it")
    return open(path, "rb", buffering=buffering, opener=_descriptor)


def _descriptor(path: str, flags: int) -> int:
    refuse_irregular(
        path, os.stat(path).st_mode
    )  # before it is opened: that alone may do something to a device
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    try:
        refuse_irregular(path, os.fstat(descriptor).st_mode)
    except UserError:
        os.close(descriptor)
        raise
    return descriptor


def refuse_irregular(path: str | os.PathLike, mode: int) -> None:
    """Raise UserError where `mode`, of os.stat, is of neither a regular file nor a folder (which open() itself refuses)."""
    kind = _KINDS.get(stat.S_IFMT(mode))
    if kind:
        raise UserError(f"{shown(path)}: is {kind}, no regular file; remove it, or name another")


def read_regular(path: str | os.PathLike, most: int | None = None) -> bytes:
    """Return the bytes of a regular file; UserError for one of more than `most`. Raises what open_regular does."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise UserError(
                f"{shown(path)}: has {size:,} bytes, must have at most {most:,}; it is something else"
            )
        return file.read()
