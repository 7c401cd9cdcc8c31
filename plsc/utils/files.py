"""Read regular files only: a pipe may block for ever, and a device has no end.

with open_regular("faces/ann.png") as file: ...
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from typing import Any, BinaryIO

import numpy as np

from plsc.errors import UserError, reading, shown


def check_parent(path: str | os.PathLike) -> None:
    """Refuse a new file whose folder is not there, before the work whose result goes there. UserError."""
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise UserError(f"{shown(path)}: there is no folder {shown(folder)}; make it first")


def open_regular(path: str | os.PathLike) -> BinaryIO:
    """Open a regular file for reading bytes.

    Raises: UserError for a pipe, a device or an impossible path; OSError.
    """
    return os.fdopen(_descriptor(path), "rb")


def _descriptor(path: str | os.PathLike) -> int:
    if "\0" in os.fspath(path):
        raise UserError(
            f"{shown(path)}: is not a path, it contains a zero byte; correct the place that names it"
        )
    # Before the file is opened, since opening alone may have an effect on a device.
    refuse_irregular(path, os.stat(path).st_mode)
    # If a pipe has taken its place since, it does not block.
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def read_array(path: str | os.PathLike) -> np.ndarray:
    """Read the bytes of a regular file, uint8 [n], in a few microseconds. Raises what open_regular raises."""
    descriptor = _descriptor(path)
    try:
        data = np.empty(os.fstat(descriptor).st_size, np.uint8)
        filled = 0
        while filled < len(data) and (count := os.readv(descriptor, [data[filled:]])):
            filled += count
        return data[:filled]
    finally:
        os.close(descriptor)


def refuse_irregular(path: str | os.PathLike, mode: int) -> None:
    """Raise UserError if `mode`, of os.stat, is that of a pipe, a device or a socket."""
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f"{shown(path)}: is no regular file; remove it, or name another")


def sha256_of(path: str | os.PathLike) -> str:
    """Compute the SHA-256 of a regular file, 64 hex digits. Raises what open_regular raises."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


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


def read_json(path: str | os.PathLike) -> Any:
    """Read the value in a JSON file. Raises MissingFileError, UserError."""
    with reading(path):
        text = read_regular(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{shown(path)}: is not JSON") from error
