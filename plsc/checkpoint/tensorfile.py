"""Write safetensors files (header length, JSON header, raw bytes) in one pass, and read them by row ranges.

Why not the safetensors package itself, which reads these files: a checkpoint needs a checksum computed while
writing, fsync, the umask obeyed (the package leaves mode 0600), no second copy of the arrays, and only some
rows back, as copies (the package maps the file: truncating it later kills the process). bfloat16 (BF16) is
read as its uint16 bits, as Paddle's `.numpy()` gives it. Numpy only.

Try it: `pytest tests/checkpoint/test_tensorfile.py`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import mmap
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
_MAX_HEADER = 100_000_000  # bytes; the safetensors package's own limit
_BLOCK = 8 << 20  # bytes read, or written, at once


class DamagedError(UserError):
    """A file is cut, altered or was never completed: set it aside and use an older one."""


def layout(arrays: Mapping[str, Any]) -> list:
    """Return the buffers of the safetensors file of `arrays`, in order; views where an array is contiguous.

    An array that is not in memory and gives its rows by slice becomes `Rows`, which are read when they are
    written; it may have a `code`, where the dtype in the file is another than numpy's (bfloat16).
    """
    header, buffers, end = {}, [], 0
    # Wide numbers first: that keeps each array aligned.
    for name in sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name)):
        array = arrays[name]
        assert array.dtype in _CODES, f"array {name!r}: safetensors cannot hold {array.dtype}"
        start, end = end, end + math.prod(array.shape) * array.dtype.itemsize
        code = getattr(array, "code", None) or _CODES[array.dtype]
        header[name] = {"dtype": code, "shape": array.shape, "data_offsets": (start, end)}
        buffers += _buffers(array)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *buffers]


class Rows:
    """A buffer of rows that is read when it is called."""

    def __init__(self, array: Any, start: int, stop: int):
        self._array = array
        self._start = start
        self._stop = stop

    def __len__(self) -> int:
        """The number of bytes."""
        return (self._stop - self._start) * math.prod(self._array.shape[1:]) * self._array.dtype.itemsize

    def __call__(self) -> np.ndarray:
        return _bytes_of(self._array[self._start : self._stop])


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _buffers(array: Any) -> list:
    if isinstance(array, np.ndarray):
        return [_bytes_of(array)]
    count = max(1, _BLOCK * len(array) // max(1, len(Rows(array, 0, len(array)))))
    return [Rows(array, start, min(start + count, len(array))) for start in range(0, len(array), count)]


def sync_folder(path: str | os.PathLike) -> None:
    """Sync the names in a folder to the disk; before that a renamed file may be lost by a power failure."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_synced(path: str | os.PathLike, buffers: Iterable) -> dict:
    """Write `buffers` one after the other into a new file and sync it to the disk; they may be made one at a
    time.

    It bypasses the page cache if possible (O_DIRECT): cached pages that are never read cost more processor
    time than all else here, and would displace the training data. The bytes go through two aligned blocks:
    one is filled and its checksum computed while a thread writes the other (both release the GIL).

    Returns: {"bytes": size, "crc32": eight hex digits}. Raises: OSError (FileExistsError too).
    """
    crc = size = 0
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        _set_direct_io(file, True)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(int)  # nothing yet
            for block in _blocks_of(buffers):
                crc, size = zlib.crc32(block, crc), size + len(block)
                writing.result()
                writing = pool.submit(_write, file, block)
            writing.result()
        os.fsync(file)
    finally:
        os.close(file)
    return {"bytes": size, "crc32": f"{crc:08x}"}


def _blocks_of(buffers: Iterable) -> Iterator[memoryview]:
    """Yield the bytes of `buffers` in two alternating blocks of memory, full except for the last."""
    blocks, filled = [memoryview(mmap.mmap(-1, _BLOCK)) for _ in range(2)], 0
    for buffer in buffers:
        remaining = memoryview(buffer() if isinstance(buffer, Rows) else buffer)
        while len(remaining):
            part = remaining[: _BLOCK - filled]
            blocks[0][filled : filled + len(part)] = part
            remaining = remaining[len(part) :]
            filled += len(part)
            if filled == _BLOCK:
                yield blocks[0]
                blocks, filled = blocks[::-1], 0
    if filled:
        yield blocks[0][:filled]


def _write(file: int, block: memoryview) -> None:
    if len(block) % mmap.PAGESIZE:  # the last block: O_DIRECT writes whole pages only
        _set_direct_io(file, False)
    while len(block):
        try:
            block = block[os.write(file, block) :]
        except OSError as error:
            # Disks with larger sectors, and what is left after a short write.
            if error.errno != errno.EINVAL or not _set_direct_io(file, False):
                raise


def _set_direct_io(file: int, wanted: bool) -> bool:
    """Switch O_DIRECT on or off if the system has it; return whether it was on."""
    direct, flags = getattr(os, "O_DIRECT", 0), fcntl.fcntl(file, fcntl.F_GETFL)
    with contextlib.suppress(OSError):  # a file system without it
        fcntl.fcntl(file, fcntl.F_SETFL, flags | direct if wanted else flags & ~direct)
    return bool(flags & direct)


def crc32_of(path: str | os.PathLike) -> str:
    """Return the CRC-32 of the file, eight hex digits."""
    crc, block = 0, memoryview(bytearray(_BLOCK))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(block):
            crc = zlib.crc32(block[:count], crc)
    return f"{crc:08x}"


class _Entry(NamedTuple):
    dtype: np.dtype
    shape: tuple[int, ...]
    start: int  # bytes from the beginning of the data
    code: str  # of the dtype, in the file


class TensorFile:
    """A safetensors file whose header was read and checked; the data is read when asked for.

    Attributes: path; arrays: name -> entry with `.dtype` and `.shape`.

    Raises DamagedError for a header that is cut, too long, not JSON, or whose arrays lie outside of the file;
    OSError.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        with open(path, "rb") as file:
            available = os.fstat(file.fileno()).st_size - 8
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(available, _MAX_HEADER):
                raise DamagedError(
                    f"{path}: says that its header has {length} bytes, which it cannot; the file is damaged"
                )
            text = file.read(length)
        self._data = 8 + length
        try:
            header = json.loads(text)
            header.pop("__metadata__", None)
            self.arrays = {name: _entry(available - length, **header[name]) for name in header}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DamagedError(
                f"{path}: its header is not that of a safetensors file; the file is damaged"
            ) from error

    def read(self, name: str) -> np.ndarray:
        """Read the array `name` into memory of its own."""
        out = np.empty(self.arrays[name].shape, self.arrays[name].dtype)
        self._read_into(out, self.arrays[name].start)
        return out

    def read_rows(self, name: str, start: int, out: np.ndarray) -> None:
        """Fill `out` (contiguous, same dtype) with the rows [start, start + len(out)) of the array `name`."""
        entry = self.arrays.get(name)
        if (
            entry is None
            or (entry.dtype, entry.shape[1:]) != (out.dtype, out.shape[1:])
            or start + len(out) > entry.shape[0]
        ):
            raise DamagedError(f"{self.path}: has not the rows of {name!r} that its manifest says")
        self._read_into(out, entry.start + start * _size(entry._replace(shape=entry.shape[1:])))

    def _read_into(self, out: np.ndarray, offset: int) -> None:
        with open(self.path, "rb") as file:
            file.seek(self._data + offset)
            if file.readinto(out.reshape(-1).view(np.uint8)) != out.nbytes:
                raise DamagedError(f"{self.path}: became shorter while it was read")


def _entry(available: int, dtype: str, shape: list, data_offsets: list) -> _Entry:
    """Check a field of the header, which `available` bytes of data follow; ValueError and others."""
    start, stop = data_offsets
    entry = _Entry(np.dtype(DTYPES[dtype]), tuple(shape), start, dtype)
    sound = all(type(n) is int and n >= 0 for n in (start, stop, *shape))
    if not sound or start + _size(entry) != stop or stop > available:
        raise ValueError("dtype, shape and offsets disagree")
    return entry


def _size(entry: _Entry) -> int:
    """Return the bytes of the array."""
    return math.prod(entry.shape) * entry.dtype.itemsize


def tensor_differences(
    there: Mapping[str, Any], here: Mapping[str, Any], their: str, our: str, first_axis: int = 0
) -> list[str]:
    """List the tensors whose name, or shape from `first_axis` on, differs, a line each; `their` and `our`
    name the two sides."""
    lines = [f"{name} is not in {our}" for name in there if name not in here]
    lines += [f"{name} is not in {their}" for name in here if name not in there]
    for name in filter(there.__contains__, here):
        theirs, ours = (list(side[name].shape)[first_axis:] for side in (there, here))
        if theirs != ours:
            lines.append(f"{name} is {theirs} in {their}, {ours} in {our}")
    return lines


def format_lines(where: str, lines: list[str]) -> str:
    """Format a UserError about tensors: the first lines, each after `where`, and the number of the others."""
    most = 10
    more = [f"and {len(lines) - most} tensors more"] if len(lines) > most else []
    return "\n".join(f"{where}: {line}" for line in [*lines[:most], *more])
