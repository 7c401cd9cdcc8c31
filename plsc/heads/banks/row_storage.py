"""Store the rows of an `OffloadedBank`: choose each row's place, and keep the rows in a file.

A record of the file contains a class centre and the state of its optimizer side by side. A sampled class
therefore needs one read and one write. Records are read and written in ascending order, through the page
cache of the operating system. Records that will be read soon are announced with posix_fadvise. The disk can
then work on many reads at once, although one thread reads. The file has no name, so it disappears when the
process ends, even if the process is killed.
"""

import os
import tempfile

import numpy as np

from plsc.errors import reading, writing
from plsc.native.heads.records import read_records, write_records
from plsc.utils.text import gigabytes

_RESUME = "resume from the newest checkpoint, if need be with another Head.bank_folder"


# Number of rows in a block. A row's place in its block plus 1 must fit into 16 bits.
_BLOCK = 32_768


class Places:
    """Gives each row a place in the storage when the row is first written.

    A step of Partial FC writes rows from the whole shard. If row i had place i, almost each row would lie in
    another page, and the system would read, clear and write back 4 kB for a row with 256 bytes. Rows that
    are written for the first time together therefore get places side by side.

    A row stays in the part of the storage that belongs to its block of rows. A checkpoint, which needs all
    rows in ascending order, therefore still reads the file from its start to its end.

    Args:
        count: number of rows.
    """

    def __init__(self, count: int):
        self._in_block = np.zeros(count, np.uint16)  # 1 + the row's place in its block, or 0 if it has none
        self._taken = np.zeros(-(-count // _BLOCK), np.int64)  # number of places that each block has given

    def find(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the rows that have a place.

        Args:
            rows: row numbers, int64 [k].

        Returns the positions of these rows in `rows`, and their places. Both are int64 [number of rows
        found], ordered by ascending place.
        """
        found = self._in_block[rows]
        positions = np.flatnonzero(found)
        places = rows[positions] // _BLOCK * _BLOCK + found[positions] - 1
        if (places[1:] > places[:-1]).all():
            return positions, places
        order = np.argsort(places)
        return positions[order], places[order]

    def give(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Give a place to the rows that have none.

        Args:
            rows: row numbers, int64 [k], all different and in ascending order.

        Returns the same as `find`. All rows are found.
        """
        assert (rows[1:] > rows[:-1]).all(), "else two rows would get one place"
        new = rows[self._in_block[rows] == 0]
        block = new // _BLOCK
        position = np.arange(len(new)) - np.searchsorted(block, block)  # among the new rows of the same block
        self._in_block[new] = self._taken[block] + position + 1
        np.add.at(self._taken, block, 1)
        return self.find(rows)


class FileRowStorage:
    """Stores records in a file without a name. The class is used like an array, by index and assignment.

    Args:
        folder: folder for the file. It is created if it does not exist.
        count: number of records.
        width: record length.
        dtype: the records' dtype.

    The constructor reserves disk space for all records. It raises UserError if there is too little space, or
    if the folder cannot be written to. Reading or writing records raises UserError if the disk fails.
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

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        records = np.empty((len(places), self.shape[1]), self._dtype)
        with reading(f"{self._folder}: class centres", remedy=_RESUME):
            read_records(self._file.fileno(), places, records)
        return records

    def __setitem__(self, places: np.ndarray, records: np.ndarray) -> None:
        with writing(f"{self._folder}: class centres", remedy=_RESUME):
            write_records(self._file.fileno(), places, np.ascontiguousarray(records, self._dtype))
