"""Write safetensors files in one pass, and read ranges of rows from them.

Such a file contains its header's length, the header as JSON, and the arrays' raw bytes. The
safetensors package can read these files. A checkpoint does not use it because it needs more:

- The checksum is computed while the file is written, and the file is synced to the disk.
- The file's mode follows the umask. The package leaves mode 0600.
- The arrays are not copied when they are written.
- Only some rows are read, and they are copies. The package maps the file into memory, so the process is
  killed if the file is truncated later.

bfloat16 (BF16) is read as its bits in uint16, as Paddle's `.numpy()` returns it. Numpy is the only
dependency.

Try it: `pytest tests/checkpoint/test_tensorfile.py`.
"""

import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plsc.errors import UserError

DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "BOOL": "?",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1",
}  # fmt: skip
_CODES = {np.dtype(name): code for code, name in DTYPES.items() if code != "BF16"}
_MAX_HEADER = 100_000_000  # limit in bytes, the same as in the safetensors package
# Bytes read or written at once. Memory of this size is reused. Larger memory comes from the system as new
# pages, which cost more time than the work on them.
_BLOCK = 4 << 20
_BEHIND = 16 * _BLOCK  # last bytes of a file, which may not be on the disk yet


class DamagedError(UserError):
    """A file is truncated, altered or incomplete. Set it aside and use an older one."""


def layout(arrays: Mapping[str, Any]) -> list:
    """Return the safetensors file's parts for `arrays` in their order: the header, then the arrays.

    An array need not be in memory. An object that returns rows by slice is read when the file is written. If
    it has an attribute `code`, that is the dtype in the file instead of numpy's (bfloat16).
    """
    header, parts, end = {}, [], 0
    # The widest numbers come first, which keeps each array aligned.
    for name in sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name)):
        array = arrays[name]
        assert array.dtype in _CODES, f"array {name!r}: safetensors cannot hold {array.dtype}"
        start, end = end, end + size_of(array)
        code = getattr(array, "code", None) or _CODES[array.dtype]
        header[name] = {"dtype": code, "shape": array.shape, "data_offsets": (start, end)}
        parts.append(array)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *parts]


def size_of(part: Any) -> int:
    """Return the size in bytes of a file's part."""
    return len(part) if isinstance(part, bytes) else math.prod(part.shape) * part.dtype.itemsize


def blocks_of(parts: Iterable) -> Iterator[memoryview]:
    """Yield the bytes of a file's parts in blocks of at most `_BLOCK` bytes."""
    for part in parts:
        if isinstance(part, (bytes, np.ndarray)):
            pieces = [part]
        else:
            rows = max(1, _BLOCK * len(part) // max(1, size_of(part)))
            pieces = (part[start : start + rows] for start in range(0, len(part), rows))
        for piece in pieces:
            if not isinstance(piece, bytes):
                piece = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
            view = memoryview(piece)
            yield from (view[start : start + _BLOCK] for start in range(0, len(view), _BLOCK))


def sync_folder(path: str | os.PathLike) -> None:
    """Sync the names in a folder to the disk. Until then, a power failure may undo a rename."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_synced(path: str | os.PathLike, parts: Iterable) -> dict:
    """Write the parts one after the other into a new file, and sync it to the disk.

    A thread computes a block's checksum and writes it while the next block is read.

    Returns: {"bytes": size, "crc32": eight hex digits}. Raises OSError, also if the file exists.
    """
    size = 0
    with open(path, "xb", buffering=0) as file, ThreadPoolExecutor(1) as pool:
        writing = pool.submit(int)  # nothing yet
        for block in blocks_of(parts):
            size += len(block)
            writing = pool.submit(_write, file.fileno(), block, writing.result())
        crc = writing.result()
        os.fsync(file.fileno())
    return {"bytes": size, "crc32": f"{crc:08x}"}


def _write(file: int, block: memoryview, crc: int) -> int:
    """Write a block, and return the checksum of the file so far.

    crc: the checksum before this block.
    """
    crc = zlib.crc32(block, crc)
    while len(block):
        block = block[os.write(file, block) :]
    # This starts writing to the disk at once, so the sync at the end is short. Pages that are already on the
    # disk are removed from memory.
    start = max(0, os.lseek(file, 0, os.SEEK_CUR) - _BEHIND)
    os.posix_fadvise(file, start, 0, os.POSIX_FADV_DONTNEED)
    return crc


def crc32_of(path: str | os.PathLike) -> str:
    """Return the file's CRC-32 as eight hex digits."""
    crc, block = 0, memoryview(bytearray(_BLOCK))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(block):
            crc = zlib.crc32(block[:count], crc)
    return f"{crc:08x}"


class _Entry(NamedTuple):
    dtype: np.dtype
    shape: tuple[int, ...]
    start: int  # offset from the beginning of the data, in bytes
    code: str  # the dtype's name in the file


class TensorFile:
    """A safetensors file that is open for reading. Its header is checked, and data is read on request.

    The file stays open as long as the object lives, so it can still be read after it has been deleted.

    Attributes:
        path: the file's path.
        arrays: each array's entry by name, with `.dtype` and `.shape`.

    Raises DamagedError if the header is truncated, too long or not JSON, or if an array lies outside the
    file. Raises OSError if the file cannot be read.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self._file = file = open(path, "rb", buffering=0)  # noqa: SIM115 (as long as the object)
        available = os.fstat(file.fileno()).st_size - 8
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(available, _MAX_HEADER):
            raise DamagedError(
                f"{path}: says that its header has {length} bytes, which is impossible; the file is damaged"
            )
        text = file.read(length)
        self._data = 8 + length
        try:
            header = json.loads(text)
            header.pop("__metadata__", None)
            self.arrays = {}
            for name, field in header.items():
                start, stop = field["data_offsets"]
                entry = _Entry(np.dtype(DTYPES[field["dtype"]]), tuple(field["shape"]), start, field["dtype"])
                whole = all(type(n) is int and n >= 0 for n in (start, stop, *entry.shape))
                if not (whole and start + size_of(entry) == stop <= available - length):
                    raise ValueError(name)
                self.arrays[name] = entry
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DamagedError(
                f"{path}: its header is not that of a safetensors file; the file is damaged"
            ) from error

    def read(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Read an array, or its rows [start, stop), into new memory."""
        entry = self.arrays[name]
        shape = entry.shape if stop is None else (stop - start, *entry.shape[1:])
        if stop is not None and stop > entry.shape[0]:
            raise DamagedError(f"{self.path}: does not have the rows of {name!r} that its manifest lists")
        of_row = math.prod(entry.shape[1:]) * entry.dtype.itemsize
        offset = self._data + entry.start + start * of_row
        array = np.empty(shape, entry.dtype)
        rest = memoryview(array.reshape(-1).view(np.uint8))
        try:
            while len(rest):
                count = os.preadv(self._file.fileno(), [rest[:_BLOCK]], offset)
                if count == 0:
                    raise DamagedError(f"{self.path}: became shorter while it was read")
                rest, offset = rest[count:], offset + count
        except OSError as error:  # on a network disk, a deleted file can no longer be read
            raise UserError(f"{self.path}: cannot be read any more ({error.strerror}); try again") from error
        return array


def tensor_differences(
    there: Mapping[str, Any], here: Mapping[str, Any], their: str, our: str, first_axis: int = 0
) -> list[str]:
    """List the tensors that differ in name or shape, one line each.

    Args:
        there: one side's tensors or entries by name.
        here: the other side's tensors or entries by name.
        their: the first side's name in the lines.
        our: the second side's name in the lines.
        first_axis: first axis whose length is compared.
    """
    lines = [f"{name} is not in {our}" for name in there if name not in here]
    lines += [f"{name} is not in {their}" for name in here if name not in there]
    for name in filter(there.__contains__, here):
        theirs, ours = (list(side[name].shape)[first_axis:] for side in (there, here))
        if theirs != ours:
            lines.append(f"{name} is {theirs} in {their}, {ours} in {our}")
    return lines
