"""Count the collectives that this rank has begun, in a file that is there when the rank is gone.

All ranks begin them in the same order, so of ranks that wait for each other the one with the lowest count has
kept the others waiting. Where a rank stands tells less: on a GPU the wait for a collective comes later, at
the next read of a value.

    with keep_in(Path("calls")):
        count()
    read(Path("calls"))  # 1
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

from plsc.errors import UserError
from plsc.utils.files import read_regular

_NUMBER = struct.Struct("<q")
_kept: mmap.mmap | bytearray = bytearray(_NUMBER.size)


def count() -> None:
    """Note that a collective begins. Takes less than a microsecond."""
    (begun,) = _NUMBER.unpack_from(_kept)
    _NUMBER.pack_into(_kept, 0, begun + 1)


@contextlib.contextmanager
def keep_in(path: Path) -> Iterator[None]:
    """Inside the block, keep the count in the file `path`, which is made, from 0 on."""
    global _kept
    path.write_bytes(bytes(_NUMBER.size))
    with open(path, "r+b") as file:
        _kept = mmap.mmap(file.fileno(), _NUMBER.size)
    try:
        yield
    finally:
        kept, _kept = _kept, bytearray(_NUMBER.size)
        kept.close()


def read(path: Path) -> int | None:
    """Read a count that a rank has kept; None if there is none."""
    try:
        (begun,) = _NUMBER.unpack(read_regular(path))
    except (OSError, UserError, struct.error):
        return None
    return begun
