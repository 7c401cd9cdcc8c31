"""Row storage of an offloaded bank: one stored row a class, in host memory or in a file.

A stored row holds the centre of a class and its optimizer state side by side, so that a sampled class costs
one read and one write. The file is read and written through the system's page cache, in rising order, with
the coming reads announced (posix_fadvise): that keeps the disk's queue full from one thread. The file has no
name, so it disappears with the process, however that ends. Try it:

    FileRowStorage("/tmp", count=1000, width=8, dtype=np.float32).read(np.array([3, 500]))  # zeros
"""

from __future__ import annotations

import os
import tempfile

import numpy as np

from plsc.errors import UserError, reading, writing
from plsc.native.heads.records import read_records, write_records
from plsc.utils.room import no_space

_RESUME = "resume from the newest checkpoint, perhaps with another Head.bank_folder"


class MemoryRowStorage:
    """Stores `count` rows of `width` numbers in host memory, all zero at first."""

    def __init__(self, count: int, width: int, dtype: np.dtype):
        self._all = np.zeros((count, width), dtype)

    def read(self, rows: np.ndarray | slice) -> np.ndarray:
        """Copy the stored rows with these numbers: [k, width]."""
        return self._all[rows].copy() if isinstance(rows, slice) else self._all[rows]

    def write(self, rows: np.ndarray | slice, stored: np.ndarray) -> None:
        """Overwrite the stored rows with these numbers, which are all different."""
        self._all[rows] = stored


class FileRowStorage:
    """Stores them in a file without a name in `folder`, whose space is reserved at once.

    Raises UserError when made: no space, no permission to write; when used: the file was cut, the disk fails.
    """

    def __init__(self, folder: str | os.PathLike, count: int, width: int, dtype: np.dtype):
        self._dtype = np.dtype(dtype)
        self._width = width
        self._folder = folder
        self._bytes = width * self._dtype.itemsize
        if lack := no_space(folder, count * self._bytes):
            raise UserError(
                f"Head.bank_folder: {folder}: no space for the class centres and the state of their "
                f"optimizer ({lack}); make space, name another folder, or halve it with "
                "Head.bank_dtype=bfloat16"
            )
        with writing(f"Head.bank_folder: {folder}", remedy="name another folder"):
            os.makedirs(folder, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 (as long as the bank)
            if count:
                os.posix_fallocate(self._file.fileno(), 0, count * self._bytes)

    def read(self, rows: np.ndarray | slice) -> np.ndarray:
        whole = isinstance(rows, slice)
        stored = np.empty((rows.stop - rows.start if whole else len(rows), self._width), self._dtype)
        with reading(f"{self._folder}: class centres", remedy=_RESUME):
            if whole:
                self._read_range(rows.start, stored)
            else:
                read_records(self._file.fileno(), rows, stored)
        return stored

    def _read_range(self, start: int, stored: np.ndarray) -> None:
        file = self._file.fileno()
        left = _bytes_of(stored)
        offset = start * self._bytes
        os.posix_fadvise(file, offset + len(left), len(left), os.POSIX_FADV_WILLNEED)  # the next range
        while left:
            count = os.preadv(file, [left], offset)
            assert count, "nobody else can cut a file without a name"
            left, offset = left[count:], offset + count

    def write(self, rows: np.ndarray | slice, stored: np.ndarray) -> None:
        stored = np.ascontiguousarray(stored, self._dtype)
        with writing(f"{self._folder}: class centres", remedy=_RESUME):
            if isinstance(rows, slice):
                self._write_range(rows.start, stored)
            else:
                write_records(self._file.fileno(), rows, stored)

    def _write_range(self, start: int, stored: np.ndarray) -> None:
        file = self._file.fileno()
        left = _bytes_of(stored)
        offset = start * self._bytes
        while left:
            count = os.pwrite(file, left, offset)
            left, offset = left[count:], offset + count


def _bytes_of(stored: np.ndarray) -> memoryview:
    return memoryview(stored.reshape(-1).view(np.uint8))
