"""Store a bank's rows on the disk, or as bfloat16 in host memory.

    S classes in this rank's shard   K classes selected for the step

A step's rows are in a float32 buffer. The next step's sampled classes are known ahead (sampling.py). A thread
reads their rows into a second buffer while the backbone runs, and writes updated rows back. It does its jobs
in the order in which they are queued. A row that two steps share is read after it was written, and is never
copied between the buffers. The stored rows are therefore the whole state, and a run that is resumed from them
computes the same numbers. Without sampling, no rows are kept in a buffer. They are fetched block by block in
the forward pass, in the backward pass (unless the head has kept the block's exponentials) and in the update.

A row is stored when it is first updated. Until then it is drawn whenever it is read, since its row number
determines its values. A bank of any size is therefore ready at once. Rows that were never updated are
reserved in the file, but not written.
"""

import math
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import paddle

from plsc.heads.banks.bank import INIT_ROWS, Bank, Selection, StateRows
from plsc.heads.banks.host import MemorySelection, update_arrays
from plsc.heads.banks.row_storage import FileRowStorage
from plsc.heads.optimizer import Update
from plsc.heads.sampling import ClassShard
from plsc.native import bfloat16
from plsc.native.heads.draws import NormalRows
from plsc.native.heads.records import pack, rounding_keys, unpack

_ROWS_AT_ONCE = 8192  # rows that are converted at a time, so that no second copy of a buffer is needed
# Spare rows of a buffer, for the samples' own classes that were not drawn. Unused ones take no memory.
_SPARE = 65_536


class _Buffer:
    """Holds rows in float32 and grows. Slot i in each array belongs to one class.

    Attributes:
        rows: the classes that are read ahead, int64, in ascending order. Slot i is for the i-th of them.
        loaded: for each of these classes, whether its slot has been filled.
        without: the rows that were skipped when the others were read ahead, because the current step still
            updates them. None if nothing was read ahead.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]):
        self._shapes = shapes
        self._slots = -1
        self.arrays: dict[str, np.ndarray] = {}
        self.forget()

    def forget(self) -> None:
        """Forget what was read ahead."""
        self.rows = np.empty(0, np.int64)
        self.loaded = np.empty(0, bool)
        self.without: np.ndarray | None = None

    def reserve(self, count: int, spare: int = 0) -> None:
        """Make room for `count` slots. If the arrays must grow for this, they get `spare` more. The
        contents stay."""
        if count <= self._slots:
            return
        before = self.arrays
        self._slots = count + spare
        self.arrays = {
            name: np.empty((self._slots, *shape[1:]), np.float32) for name, shape in self._shapes.items()
        }
        for name, array in before.items():
            self.arrays[name][: len(array)] = array


class OffloadedBank(Bank):
    """Keeps all rows in a storage, and a step's rows in a buffer that the rule updates.

    Args:
        shard: this rank's classes.
        width: how many numbers a row has.
        dtype: the stored rows' dtype, "float32" or "bfloat16".
        folder: folder for the file that stores the rows. None stores them in memory.
        std: the initial centres' standard deviation.
        seed: seed for the initial centres and for stochastic rounding.
        options: `bias` and `rule`, which are passed to `Bank`.
    """

    def __init__(
        self,
        shard: ClassShard,
        width: int,
        *,
        dtype: str,
        folder: str | os.PathLike | None,
        std: float,
        seed: int,
        **options: Any,
    ):
        super().__init__(shard, width, **options)
        self._dtype = np.dtype("float32" if dtype == "float32" else "uint16")
        self._seed = seed
        # A stored row's columns: the centres' value and moments, then the bias's.
        self._columns: dict[str, slice | int] = {}
        end = 0
        for name, shape in self.shapes.items():
            numbers = math.prod(shape[1:])
            self._columns[name] = slice(end, end + numbers) if shape[1:] else end
            end += numbers
        if folder is None:
            self._storage = np.zeros((shard.size, end), self._dtype)
        else:
            self._storage = FileRowStorage(folder, shard.size, end, self._dtype)
        self._is_stored = np.zeros(shard.size, bool)
        self._initial = NormalRows(seed, shard.start, shard.stop, width, std, INIT_ROWS)
        self._ahead = _Buffer(self.shapes)  # rows that were read for the next step
        self._spare: list[_Buffer] = []  # ended steps' buffers
        self._thread = ThreadPoolExecutor(1, "bank")
        self._jobs: list[Future] = []

    def load(self, rows: np.ndarray, buffer: _Buffer, slots: np.ndarray) -> None:
        """Read stored rows (numbers, int64 [k]) into slots (int64 [k]) of a buffer."""
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            unpack(self._records(rows[part]), list(buffer.arrays.values()), slots[part])

    def store(self, rows: np.ndarray, buffer: _Buffer, slots: np.ndarray, step: int) -> None:
        """Write a buffer's slots to stored rows.

        Values are rounded to bfloat16 stochastically. The random bits depend only on the seed, the step and
        the row.
        """
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            keys = None
            if self._dtype != np.float32:
                keys = rounding_keys(self._seed, step, rows[part] + self.shard.start)
            self._storage[rows[part]] = pack(list(buffer.arrays.values()), slots[part], keys)
            self._is_stored[rows[part]] = True

    def _records(self, rows: np.ndarray, centres: bool = True) -> np.ndarray:
        """Read rows' records (int64 [k]).

        If a row was never stored, its centre is drawn and its other numbers are 0.

        Args:
            rows: row numbers.
            centres: whether to draw the centres of rows that were never stored. If false, these centres are
                0.
        """
        is_stored = self._is_stored[rows]
        if is_stored.all():
            return self._storage[rows]
        records = np.zeros((len(rows), self._storage.shape[1]), self._dtype)
        if is_stored.any():  # reading unwritten rows takes as long as reading stored ones
            records[is_stored] = self._storage[rows[is_stored]]
        if centres:
            drawn = np.flatnonzero(~is_stored)
            records[drawn, self._columns["centres"]] = self._in_dtype(self._initial(rows[drawn]))
        return records

    def _in_dtype(self, numbers: np.ndarray) -> np.ndarray:
        """Convert float32 numbers to a record's dtype."""
        return numbers if self._dtype == np.float32 else bfloat16.nearest(numbers)

    def _queue(self, work: Callable, *args) -> None:
        """Queue a job for the thread, after all earlier ones."""
        self._jobs.append(self._thread.submit(work, *args))

    def _wait(self) -> None:
        """Wait until all jobs are done. Raise a failed job's exception."""
        jobs = self._jobs
        self._jobs = []
        for job in jobs:
            job.result()

    def spare_buffer(self) -> _Buffer:
        """Return a buffer for a new step, without rows that were read ahead."""
        buffer = self._spare.pop() if self._spare else _Buffer(self.shapes)
        buffer.forget()
        return buffer

    def take_buffer(self, buffer: _Buffer) -> None:
        """Take back an ended step's buffer."""
        self._spare.append(buffer)

    def read_ahead(self, draw: Callable, current: np.ndarray) -> None:
        """Queue reading the next step's rows, except those that the current step will update."""
        self._queue(self._read_drawn, draw, current, self._ahead)

    def _read_drawn(self, draw: Callable, current: np.ndarray, buffer: _Buffer) -> None:
        buffer.rows = draw()
        buffer.without = current
        buffer.loaded = np.isin(buffer.rows, current, assume_unique=True, invert=True)
        buffer.reserve(len(buffer.rows), _SPARE)
        self.load(buffer.rows[buffer.loaded], buffer, np.flatnonzero(buffer.loaded))

    def take_updated(self, rows: np.ndarray, buffer: _Buffer, slots: np.ndarray, step: int) -> None:
        """Queue writing the rows that a step has updated, and reading those that the next step needs."""
        self._queue(self.store, rows, buffer, slots, step)
        self._queue(self._read_updated, rows, self._ahead)

    def _read_updated(self, rows: np.ndarray, buffer: _Buffer) -> None:
        """Read the rows that `_read_drawn` skipped, if it skipped them for the step that has now updated
        `rows`."""
        if buffer.without is not rows:
            buffer.forget()  # another step has updated its rows, so the rows that were read may be outdated
            return
        slots = np.flatnonzero(~buffer.loaded)
        self.load(buffer.rows[slots], buffer, slots)
        buffer.loaded[:] = True

    def select(self, index_K):
        self._wait()
        if index_K is None:
            return StoredSelection(self, None)
        buffer, self._ahead = self._ahead, self.spare_buffer()
        # Rows that were also in the previous step were read after its update. If that step was dropped
        # without an update, they are missing, and are read here. So are the samples' own classes, which were
        # not drawn in advance.
        ahead = buffer.rows
        slots = np.searchsorted(ahead, index_K)
        loaded = ahead[buffer.loaded]
        missing = np.flatnonzero(np.isin(index_K, loaded, assume_unique=True, invert=True))
        slots[missing] = len(ahead) + np.arange(len(missing))
        buffer.reserve(len(ahead) + len(missing), _SPARE)
        self.load(index_K[missing], buffer, slots[missing])
        return BufferedSelection(self, index_K, buffer, slots)

    def update_all(self, gradients: Mapping[str, paddle.Tensor], update: Update, step: int) -> None:
        """Update all rows, `_ROWS_AT_ONCE` at a time."""
        self._wait()
        buffer = self.spare_buffer()
        for start in range(0, self.shard.size, _ROWS_AT_ONCE):
            rows = np.arange(start, min(start + _ROWS_AT_ONCE, self.shard.size))
            slots = rows - start
            buffer.reserve(len(rows))
            self.load(rows, buffer, slots)
            of_rows = {name: grad[start : start + len(rows)] for name, grad in gradients.items()}
            update_arrays(self, buffer.arrays, slots, of_rows, update)
            self.store(rows, buffer, slots, step)
        self._ahead.forget()
        self.take_buffer(buffer)

    def state(self):
        self._wait()
        return {
            name: StateRows(partial(self.read, name), self._dtype, shape)
            for name, shape in self.shapes.items()
        }

    def read(self, name: str, rows: slice | np.ndarray) -> np.ndarray:
        """Read an array's rows in the dtype in which they are stored."""
        self._wait()
        if isinstance(rows, slice):
            rows = np.arange(rows.start, rows.stop)
        return self._records(rows, name == "centres")[:, self._columns[name]]

    def _load_rows(self, start, rows):
        self._wait()
        self._ahead.forget()
        stored = np.zeros((len(rows["centres"]), self._storage.shape[1]), self._dtype)
        for name, array in rows.items():
            stored[:, self._columns[name]] = self._in_dtype(bfloat16.float32_of(array))
        self._storage[start : start + len(stored)] = stored
        self._is_stored[start : start + len(stored)] = True


class BufferedSelection(MemorySelection):
    """Keeps a step's rows in a buffer."""

    bank: OffloadedBank

    def __init__(self, bank: OffloadedBank, index_K: np.ndarray, buffer: _Buffer, slots_K: np.ndarray):
        super().__init__(bank, index_K, buffer.arrays, slots_K)
        self._buffer = buffer

    def prefetch(self, draw):
        self.bank.read_ahead(draw, self.index_K)

    def _update(self, update, step):
        super()._update(update, step)
        self.bank.take_updated(self.index_K, self._buffer, self._slots_K, step)

    def free(self):
        super().free()
        self.bank.take_buffer(self._buffer)


class StoredSelection(Selection):
    """Reads rows from the storage whenever they are needed. It selects all rows."""

    bank: OffloadedBank

    def rows(self, name, start, stop):
        return self._tensor(name, slice(start, stop))

    def gather(self, name, number_P):
        return self._tensor(name, number_P.numpy())

    def _tensor(self, name: str, rows: slice | np.ndarray) -> paddle.Tensor:
        return paddle.to_tensor(np.ascontiguousarray(bfloat16.float32_of(self.bank.read(name, rows))))

    def host_rows(self, name):
        return None

    def _update(self, update, step):
        self.bank.update_all(self.gradients(), update, step)
