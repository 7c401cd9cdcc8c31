"""Store the rows of an `OffloadedBank` in a file. The class is used like an array, by index and assignment.

A row of the file contains a class centre and the state of its optimizer side by side. A sampled class
therefore needs one read and one write. Rows are read and written in ascending order, through the page cache
of the operating system. Rows that will be read soon are announced with posix_fadvise. The disk can then work
on many reads at once, although one thread reads. The file has no name, so it disappears when the process
ends, even if the process is killed.
"""

import os
import tempfile

import numpy as np

from plsc.errors import reading, writing
from plsc.native.heads.records import read_records, write_records
from plsc.utils.text import gigabytes

_RESUME = "resume from the newest checkpoint, if need be with another Head.bank_folder"


class FileRowStorage:
    """Stores rows in a file without a name. All rows are zero at first.

    Args:
        folder: folder for the file. It is created if it does not exist.
        count: number of rows.
        width: row length.
        dtype: the rows' dtype.

    The constructor reserves disk space for all rows. It raises UserError if there is too little space, or if
    the folder cannot be written to. Reading or writing rows raises UserError if the disk fails.
    """

    def __init__(self, folder: str | os.PathLike, count: int, width: int, dtype: np.dtype):
        self.shape = (count, width)
        self._dtype = np.dtype(dtype)
        self._folder = folder
        size = count * width * self._dtype.itemsize
        half = ", or halve the size with Head.bank_dtype=bfloat16" if self._dtype == np.float32 else ""
        remedy = f"class centres and optimizer need {gigabytes(size)}: set another Head.bank_folder{half}"
        with writing(f"Head.bank_folder: {folder}", remedy=remedy):
            os.makedirs(folder, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 (stays open)
            if size:
                os.posix_fallocate(self._file.fileno(), 0, size)

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        rows = _numbers(rows)
        stored = np.empty((len(rows), self.shape[1]), self._dtype)
        with reading(f"{self._folder}: class centres", remedy=_RESUME):
            read_records(self._file.fileno(), rows, stored)
        return stored

    def __setitem__(self, rows: slice | np.ndarray, stored: np.ndarray) -> None:
        with writing(f"{self._folder}: class centres", remedy=_RESUME):
            write_records(self._file.fileno(), _numbers(rows), np.ascontiguousarray(stored, self._dtype))


def _numbers(rows: slice | np.ndarray) -> np.ndarray:
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
