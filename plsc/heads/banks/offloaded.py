"""A bank that stores its rows on the disk, or as bfloat16 in host memory; a buffer holds those of the step,
in float32.

    S classes in this rank's shard   K of them selected for the step: the buffer's rows

The draw of the next step is known ahead (sampling.py), so one thread reads its rows into a second buffer
while the backbone runs, and writes back what an update has changed. That thread does its jobs in the order in
which they come; a row that two steps share is read after it was written, never copied between the buffers, so
the stored rows are the whole state: a run resumed from them goes on with the same numbers. Without sampling
nothing is kept in a buffer: rows are fetched block by block, in the forward pass, the backward pass and the
update. Try it:

    options = {"bias": False, "std": 0.01, "seed": 0, "rule": Momentum()}
    build_bank("disk", "bfloat16", "/tmp", ClassShard.whole(1000), 8, **options)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import numpy as np
import paddle

from plsc.heads.banks.bank import Bank, initial_rows
from plsc.heads.banks.host import HostRows
from plsc.heads.banks.row_storage import FileRowStorage, MemoryRowStorage
from plsc.heads.banks.state_rows import StateRows
from plsc.heads.optimizer import Rule, Update, moment_name
from plsc.native.heads.records import pack, unpack
from plsc.utils import bfloat16
from plsc.utils.logging import get_logger
from plsc.utils.sharding import ClassShard

_ROWS_AT_ONCE = 8192  # rows between storage and float32: no second copy of a buffer
# Threads that draw the initial rows: more are not faster than a disk, and each has rows in memory.
_THREADS = min(4, os.cpu_count() or 1)
_LOGGED_BYTES = 1 << 30  # from so many bytes on writing takes long enough to be logged
# Rows of a buffer beyond the draw, for positives that were not drawn; memory only where they are used.
_SPARE = 65_536


class RowLayout:
    """Describes the columns of a stored row: value and moments of the centres, then of the bias, side by
    side.

    Attributes:
        dtype: of a stored number: float32, or uint16 for bfloat16. numbers: of a stored row.
        widths: array -> its numbers in a row, 0 for one that is no matrix.
    """

    def __init__(self, width: int, bias: bool, rule: Rule, dtype: np.dtype):
        self.dtype = dtype
        self.widths = {}
        for name in ("centres", "bias") if bias else ("centres",):
            for array in (name, *(moment_name(name, moment) for moment in rule.moments)):
                self.widths[array] = width if name == "centres" else 0
        ends = np.cumsum([max(1, width) for width in self.widths.values()]).tolist()
        self.columns = {name: slice(start, stop) for name, start, stop in zip(self.widths, [0, *ends], ends)}
        self.numbers = ends[-1]

    def split(self, stored: np.ndarray) -> dict[str, np.ndarray]:
        """Cut stored rows [k, numbers] into [k, width] or [k] of each array, views."""
        return {
            name: stored[:, columns] if self.widths[name] else stored[:, columns.start]
            for name, columns in self.columns.items()
        }

    def encode(self, rows: np.ndarray) -> np.ndarray:
        """Round float32 rows to the stored dtype, to the nearest."""
        return rows if self.dtype == np.float32 else bfloat16.nearest(rows)


class _Buffer:
    """Holds rows in float32, and grows; slot i of each array belongs to one class."""

    def __init__(self, widths: dict[str, int]):
        self._widths = widths
        self._slots = -1
        self.arrays: dict[str, np.ndarray] = {}

    def reserve(self, count: int, spare: int = 0) -> None:
        """Grow to at least that many slots; the contents stay."""
        if count <= self._slots:
            return
        before = self.arrays
        self._slots = count + spare
        self.arrays = {
            name: np.empty((self._slots, width) if width else self._slots, np.float32)
            for name, width in self._widths.items()
        }
        for name, array in before.items():
            self.arrays[name][: len(array)] = array


class _Prefetched:
    """Rows of the next step.

    rows: their numbers, int64, rising; slot i is for the i-th. loaded: which of them are in their slots
    already.
    """

    def __init__(self):
        self.rows = np.empty(0, np.int64)
        self.loaded = np.empty(0, bool)


class OffloadedBank(Bank):
    """Keeps the rows in a storage, and those of the step in a buffer that the rule updates.

    Args:
        storage: has a row for each class of the shard. layout: the columns of such a row.
        std, seed: of the initial centres; seed also of the rounding. The others: as of `Bank`.
    """

    def __init__(
        self,
        storage: FileRowStorage | MemoryRowStorage,
        layout: RowLayout,
        shard: ClassShard,
        width: int,
        *,
        bias: bool,
        rule: Rule,
        std: float,
        seed: int,
    ):
        super().__init__(shard, width, bias=bias, rule=rule)
        self.itemsize = layout.dtype.itemsize
        self._storage = storage
        self._layout = layout
        self._std = std
        self._seed = seed
        self._initialised = 0  # rows of the shard, from the first, that have been written
        self._buffer = _Buffer(layout.widths)
        self._next_buffer = _Buffer(layout.widths)
        self._prefetched = _Prefetched()
        self._selected = HostRows({}, None)  # the buffer's rows of the step
        self._thread = ThreadPoolExecutor(1, "bank")
        self._jobs: list[Future] = []

    # -- stored rows

    @property
    def _written(self) -> FileRowStorage | MemoryRowStorage:
        """The storage, with the initial rows written where no checkpoint has brought any."""
        self.write_initial_rows()
        return self._storage

    def write_initial_rows(self):
        count = self.shard.size - self._initialised
        if not count:
            return
        starts = range(self._initialised, self.shard.size, _ROWS_AT_ONCE)
        self._initialised = self.shard.size
        size = count * self._layout.numbers * self.itemsize
        if size > _LOGGED_BYTES:
            get_logger().info(f"writing the initial rows of {count:,} classes, {size / 2**20:,.0f} MB")
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(self._write_initial, starts))

    def _write_initial(self, start: int) -> None:
        stop = min(start + _ROWS_AT_ONCE, self.shard.size)
        first = self.shard.start
        centres = initial_rows(self._seed, first + start, first + stop, self.width, self._std)
        stored = np.zeros((stop - start, self._layout.numbers), self._layout.dtype)
        stored[:, self._layout.columns["centres"]] = self._layout.encode(centres)
        self._storage.write(slice(start, stop), stored)

    def _load(self, rows: np.ndarray, buffer: _Buffer, slots: np.ndarray) -> None:
        """Read stored rows into slots of a buffer."""
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            unpack(self._written.read(rows[part]), list(buffer.arrays.values()), slots[part])

    def _store(self, rows: np.ndarray, buffer: _Buffer, slots: np.ndarray, step: int) -> None:
        """Write slots of a buffer to stored rows, rounded at random by the step's number if they are
        bfloat16."""
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            keys = None
            if self._layout.dtype != np.float32:
                keys = bfloat16.keys_of(self._seed, step, rows[part] + self.shard.start)
            stored, _ = pack(list(buffer.arrays.values()), slots[part], keys)
            self._written.write(rows[part], stored)

    # -- the thread

    def _queue(self, work: Callable, *args) -> Future:
        """Queue a job for the thread, after all earlier ones."""
        self._jobs.append(self._thread.submit(work, *args))
        return self._jobs[-1]

    def _wait(self) -> None:
        """Wait until all jobs are done; raises the exception of a failed one."""
        jobs = self._jobs
        self._jobs = []
        for job in jobs:
            job.result()

    def _read_drawn(
        self, draw: Callable, prefetched: _Prefetched, current: np.ndarray, buffer: _Buffer
    ) -> None:
        """Read the next step's rows, except those that the current step will update."""
        rows = draw()
        buffer.reserve(len(rows), _SPARE)
        loaded = np.isin(rows, current, assume_unique=True, invert=True)
        self._load(rows[loaded], buffer, np.flatnonzero(loaded))
        prefetched.rows = rows
        prefetched.loaded = loaded

    def _read_updated(self, prefetched: _Prefetched, buffer: _Buffer) -> None:
        """Read the rows that `_read_drawn` left out."""
        slots = np.flatnonzero(~prefetched.loaded)
        self._load(prefetched.rows[slots], buffer, slots)
        prefetched.loaded[:] = True

    # -- the step

    def select(self, index_K, spare=0):
        super().select(index_K)
        self._wait()
        if index_K is None:
            return
        self._buffer, self._next_buffer = self._next_buffer, self._buffer
        prefetched = self._prefetched
        self._prefetched = _Prefetched()
        slots = np.searchsorted(prefetched.rows, index_K)
        loaded = slots < len(prefetched.rows)
        loaded[loaded] = (prefetched.rows[slots[loaded]] == index_K[loaded]) & prefetched.loaded[
            slots[loaded]
        ]
        missing = np.flatnonzero(~loaded)
        slots[missing] = len(prefetched.rows) + np.arange(len(missing))
        self._buffer.reserve(len(prefetched.rows) + len(missing), _SPARE)
        self._load(index_K[missing], self._buffer, slots[missing])
        self._selected = HostRows(self._buffer.arrays, slots)

    def prefetch(self, draw):
        self._queue(self._read_drawn, draw, self._prefetched, self._index_K, self._next_buffer)

    def rows(self, name, start, stop):
        if self._index_K is not None:
            return self._selected.read(name, start, stop)
        stored = self._read(name, slice(start, stop))
        return paddle.to_tensor(np.ascontiguousarray(bfloat16.float32_of(stored)))

    def gather(self, name, number_P):
        if self._index_K is not None:
            return self._selected.gather(name, number_P)
        stored = self._layout.split(bfloat16.float32_of(self._written.read(number_P.numpy())))
        return paddle.to_tensor(np.ascontiguousarray(stored[name]))

    def host_rows(self, name):
        return None if self._index_K is None else (self._selected.arrays[name], self._selected.index_K)

    def _update(self, update, step):
        if self._index_K is None:
            self._update_all(update, step)
            return
        self._selected.update(self.rule, self.gradients(), self.moments_of, update)
        self._queue(self._store, self._index_K, self._buffer, self._selected.index_K, step)
        self._queue(self._read_updated, self._prefetched, self._next_buffer)

    def _update_all(self, update: Update, step: int) -> None:
        """Update all rows of the shard, a block at a time in the buffer."""
        for start in range(0, self.shard.size, _ROWS_AT_ONCE):
            rows = np.arange(start, min(start + _ROWS_AT_ONCE, self.shard.size))
            slots = rows - start
            self._buffer.reserve(len(rows))
            self._load(rows, self._buffer, slots)
            gradients = {name: grad[start : start + len(rows)] for name, grad in self._grads.items()}
            HostRows(self._buffer.arrays, slots).update(self.rule, gradients, self.moments_of, update)
            self._store(rows, self._buffer, slots, step)

    # -- checkpoints

    def state(self):
        self._wait()
        arrays = {}
        for name, width in self._layout.widths.items():
            shape = (self.shard.size, width) if width else (self.shard.size,)
            arrays[name] = StateRows(partial(self._read, name), self._layout.dtype, shape)
        return arrays

    def _read(self, name: str, rows: slice | np.ndarray) -> np.ndarray:
        """Read these rows of an array as they are stored."""
        self._wait()
        return self._layout.split(self._written.read(rows))[name]

    def load_rows(self, start, rows):
        self._wait()
        self._prefetched = _Prefetched()
        layout = self._layout
        stop = start + len(rows["centres"])
        stored = np.empty((stop - start, layout.numbers), layout.dtype)
        for name, array in layout.split(stored).items():
            given = rows[name]
            array[...] = given if given.dtype == layout.dtype else layout.encode(bfloat16.float32_of(given))
        if start == self._initialised:
            self._initialised = stop  # the initial rows are not needed
        storage = self._written if self._initialised < stop else self._storage
        storage.write(slice(start, stop), stored)
