"""Store a bank's rows in a file on the disk, or as bfloat16 in host memory.

The storage is this file or the array in memory. It has space for all rows in the shard. It contains only the
rows that were updated or loaded from a checkpoint, each in the place that it got then (row_storage.py). A
row's initial value depends only on the seed and the row number, so the value of every other row is drawn
whenever the row is read. A bank of any size is therefore ready at once.

With sampling, a step's rows are read into a buffer in host memory, in float32, and are updated there. The
random draw of the next step's classes is known in advance (sampling.py). While the backbone runs, a thread
reads the rows of these classes from the storage into a second buffer. After the update, the thread writes the
updated rows to the storage. It performs its jobs in the order in which they are queued. A row that takes part
in two consecutive steps is read from the storage after it was written, and is never copied from one buffer to
the other. The storage therefore contains the whole state, and a resumed run computes the same numbers.

Without sampling, no rows are kept in a buffer. The rows of a block are read from the storage in the forward
pass, in the update, and in the backward pass unless the head has kept the exponentials of this block.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import paddle

from plsc.heads.banks.bank import INIT_ROWS, Bank, Selection, StateRows
from plsc.heads.banks.host import MemorySelection, update_arrays
from plsc.heads.banks.row_storage import FileRowStorage, Places
from plsc.heads.optimizer import Update
from plsc.heads.sampling import ClassShard
from plsc.native import bfloat16
from plsc.native.heads.draws import NormalRows
from plsc.native.heads.records import pack, rounding_keys, unpack

# Number of rows that are converted at a time. Converting all rows at once would need a copy of the buffer.
_ROWS_AT_ONCE = 8192
# Number of additional rows in a buffer, for classes of the samples that were not drawn. Unused rows take no
# memory.
_SPARE = 65_536


class _Buffer:
    """Contains rows in float32. The buffer can grow. A slot is a place for one row: index i in all arrays.

    Attributes:
        arrays: values and moments by name. The first axis is the slots.
        rows: numbers of the rows that are read in advance, int64, in ascending order. Slot i is for the i-th
            row.
        loaded: whether each of these rows was read into its slot, bool.
        without: the rows of the step that was current during the reading. Those of them that the next step
            also needs were skipped, because the current step still had to update them. None if nothing was
            read in advance.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]):
        self._shapes = shapes
        self._slots = -1
        self.arrays: dict[str, np.ndarray] = {}
        self.forget()

    def forget(self) -> None:
        """Forget the rows that were read in advance."""
        self.rows = np.empty(0, np.int64)
        self.loaded = np.empty(0, bool)
        self.without: np.ndarray | None = None

    def reserve(self, count: int, spare: int = 0) -> None:
        """Make sure that there are at least `count` slots. If the arrays have fewer slots, they grow to
        `count + spare` slots, and keep their contents."""
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
    """Stores the rows that were updated or loaded in a storage, and draws the others whenever they are read.

    With sampling, a step's rows are updated in a buffer in host memory, and then written to the storage.

    Args:
        shard: this rank's classes.
        width: row length of the centres.
        dtype: the storage's dtype, "float32" or "bfloat16".
        folder: folder for the storage's file. If it is None, the rows are stored in memory.
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
        # Columns of the storage by array name: first the centres and their moments, then the bias and its
        # moments.
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
        self._places = Places(shard.size)
        self._initial = NormalRows(seed, shard.start, shard.stop, width, std, INIT_ROWS, self._dtype.name)
        self._ahead = _Buffer(self.shapes)  # buffer for the next step's rows
        self._spare: list[_Buffer] = []  # buffers of steps that have ended
        self._thread = ThreadPoolExecutor(1, "bank")
        self._jobs: list[Future] = []

    def load(self, rows: np.ndarray, buffer: _Buffer, slots: np.ndarray) -> None:
        """Read rows from the storage into a buffer.

        Args:
            rows: row numbers, int64 [k].
            buffer: buffer to write to.
            slots: each row's slot, int64 [k].
        """
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            unpack(self._records(rows[part]), list(buffer.arrays.values()), slots[part])

    def store(self, rows: np.ndarray, buffer: _Buffer, slots: np.ndarray, step: int) -> None:
        """Write rows from a buffer to the storage.

        If the storage has the dtype bfloat16, the numbers are rounded stochastically. The random bits depend
        only on the seed, the step and the row.

        Args:
            rows: row numbers, int64 [k].
            buffer: buffer to read from.
            slots: each row's slot, int64 [k].
            step: training step number.
        """
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[start : start + _ROWS_AT_ONCE]
            positions, places = self._places.give(part)
            keys = None
            if self._dtype != np.float32:
                keys = rounding_keys(self._seed, step, part[positions] + self.shard.start)
            self._storage[places] = pack(list(buffer.arrays.values()), slots[start + positions], keys)

    def _records(self, rows: np.ndarray) -> np.ndarray:
        """Read rows from the storage, with all arrays' columns.

        If a row was never written, its centre is drawn, and its other numbers are 0.

        Args:
            rows: row numbers, int64 [k].

        Returns the rows in the storage's dtype, [k, columns].
        """
        positions, places = self._places.find(rows)
        if _in_order(positions, rows):
            return self._storage[places]
        records = np.zeros((len(rows), self._storage.shape[1]), self._dtype)
        records[positions] = self._storage[places]
        new = np.delete(np.arange(len(rows)), positions)
        records[new, self._columns["centres"]] = self._initial(rows[new])
        return records

    def _in_dtype(self, numbers: np.ndarray) -> np.ndarray:
        """Convert float32 numbers to the storage's dtype."""
        return numbers if self._dtype == np.float32 else bfloat16.nearest(numbers)

    def _queue(self, work: Callable, *args) -> None:
        """Queue the call `work(*args)` for the thread. The thread runs it after all jobs that were queued
        before."""
        self._jobs.append(self._thread.submit(work, *args))

    def _wait(self) -> None:
        """Wait until all jobs are done. If a job has raised an exception, raise this exception.

        A later call raises it again. The storage may then contain only a part of a step's rows, so nobody may
        read them.
        """
        for job in self._jobs:
            job.result()
        self._jobs = []

    @contextmanager
    def _failure_remembered(self) -> Iterator[None]:
        """If the block raises an exception, let every later `_wait` raise it, too. Use this for writes that
        are not jobs."""
        try:
            yield
        except BaseException as error:
            failed: Future = Future()
            failed.set_exception(error)
            self._jobs.append(failed)
            raise

    def spare_buffer(self) -> _Buffer:
        """Return a buffer for a new step. It contains no rows that were read in advance."""
        buffer = self._spare.pop() if self._spare else _Buffer(self.shapes)
        buffer.forget()
        return buffer

    def take_buffer(self, buffer: _Buffer) -> None:
        """Take back the buffer from a step that has ended."""
        self._spare.append(buffer)

    def read_ahead(self, draw: Callable, current: np.ndarray) -> None:
        """Queue a job that reads the next step's rows, except those that the current step will update.

        Args:
            draw: returns the numbers of the rows that are drawn for the next step, see `Selection.prefetch`.
            current: the current step's row numbers, int64 [K].
        """
        self._queue(self._read_drawn, draw, current, self._ahead)

    def _read_drawn(self, draw: Callable, current: np.ndarray, buffer: _Buffer) -> None:
        buffer.rows = draw()
        buffer.without = current
        buffer.loaded = np.isin(buffer.rows, current, assume_unique=True, invert=True)
        buffer.reserve(len(buffer.rows), _SPARE)
        self.load(buffer.rows[buffer.loaded], buffer, np.flatnonzero(buffer.loaded))

    def take_updated(self, rows: np.ndarray, buffer: _Buffer, slots: np.ndarray, step: int) -> None:
        """Queue two jobs after a step's update. The first writes the updated rows to the storage. The
        second reads those of them that the next step also needs.

        Args:
            rows: the updated rows' numbers, int64 [K].
            buffer: buffer of the step that has updated the rows.
            slots: each row's slot in this buffer, int64 [K].
            step: training step number.
        """
        self._queue(self.store, rows, buffer, slots, step)
        self._queue(self._read_updated, rows, self._ahead)

    def _read_updated(self, rows: np.ndarray, buffer: _Buffer) -> None:
        """Read the rows that `_read_drawn` skipped.

        Args:
            rows: row numbers of the step that has just been updated. If `_read_drawn` skipped rows because of
                another step, all rows in `buffer` are forgotten.
            buffer: buffer for the next step's rows.
        """
        if buffer.without is not rows:
            buffer.forget()  # the update may have changed rows that were not skipped
            return
        slots = np.flatnonzero(~buffer.loaded)
        self.load(buffer.rows[slots], buffer, slots)
        buffer.loaded[:] = True

    def select(self, index_K):
        self._wait()
        if index_K is None:
            return StoredSelection(self, None)
        buffer, self._ahead = self._ahead, self.spare_buffer()
        # The thread has read the drawn rows. Two kinds of rows are missing in the buffer, and are read here:
        # the classes of the samples that were not drawn, and, if the previous step was skipped without an
        # update, the rows that this step shares with the previous one.
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
        with self._failure_remembered():
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
        """Read rows of one array from the storage, in the storage's dtype.

        Args:
            name: the array's name.
            rows: a slice with a start and a stop, or row numbers, int64 [k].
        """
        self._wait()
        if isinstance(rows, slice):
            rows = np.arange(rows.start, rows.stop)
        positions, places = self._places.find(rows)
        if _in_order(positions, rows):
            return self._storage[places][:, self._columns[name]]
        if not len(positions):
            return self._new(name, rows)
        values = np.empty((len(rows), *self.shapes[name][1:]), self._dtype)
        values[positions] = self._storage[places][:, self._columns[name]]
        new = np.delete(np.arange(len(rows)), positions)
        values[new] = self._new(name, rows[new])
        return values

    def _new(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return the values that rows of one array have before they are written for the first time."""
        return (
            self._initial(rows)
            if name == "centres"
            else np.zeros((len(rows), *self.shapes[name][1:]), self._dtype)
        )

    def _load_rows(self, start, rows):
        self._wait()
        self._ahead.forget()
        numbers = np.arange(start, start + len(rows["centres"]))
        stored = np.zeros((len(numbers), self._storage.shape[1]), self._dtype)
        positions, places = self._places.find(numbers)
        stored[positions] = self._storage[places]  # arrays that `rows` does not contain keep their numbers
        for name, array in rows.items():
            stored[:, self._columns[name]] = self._in_dtype(bfloat16.float32_of(array))
        with self._failure_remembered():
            positions, places = self._places.give(numbers)
            self._storage[places] = stored[positions]


def _in_order(positions: np.ndarray, rows: np.ndarray) -> bool:
    """Return whether all rows were found, in the order in which they were asked for."""
    return len(positions) == len(rows) and bool((positions[1:] > positions[:-1]).all())


class BufferedSelection(MemorySelection):
    """Represents a step's rows in a buffer."""

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
    """Represents all bank rows. Reads rows from the storage whenever they are needed."""

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
