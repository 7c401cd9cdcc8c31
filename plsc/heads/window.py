"""A bank whose rows rest elsewhere, on the disk or as bfloat16 in host memory: a window holds those of the step, in float32.

    S classes in this rank's shard   K of them selected for the step: the window's rows

The draw of the next step is known ahead (sampling.py), so one thread reads its rows into a second window while the backbone runs, and writes back
what an update has moved. That thread does its jobs in the order in which they come; a row that two steps share is read after it was
written, never handed over, so rows at rest are all there is to know of the past: a run resumed from them goes on with the same numbers.
Without sampling there is no window: rows are fetched block by block, in the forward pass, the backward pass and the update. Try it:

    build_bank("disk", "bfloat16", "/tmp", ClassShard.whole(1000), 8, bias=False, std=0.01, seed=0, momentum=0.9, weight_decay=0)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import numpy as np
import paddle

from plsc import half, log
from plsc.heads.bank import BANKS, Bank, HostBank, initial_rows, momentum_of
from plsc.heads.records import FileRecords, MemoryRecords
from plsc.kernels.records import pack, unpack
from plsc.sharding import ClassShard

_ROWS_AT_ONCE = 8192  # rows between a record and float32: no second copy of a window
_THREADS = min(
    4, os.cpu_count() or 1
)  # that draw the initial rows: more are not faster than a disk, and each has rows in memory
_TOLD = 1 << 30  # bytes that take so long to write that the user is told
_SPARE = 65_536  # rows of a window beyond the draw, for positives that were not drawn; memory only where they are used


def build_bank(
    kind: str, dtype: str, folder: str | os.PathLike, shard: ClassShard, width: int, **options
) -> Bank:
    """The bank that the config's keys of Head ask for; further arguments as of `Bank`.

    Args:
        kind: "device", "host", "disk". dtype: "float32" or, not on the device, "bfloat16".
        folder: where a bank on disk has its file.
    """
    if kind != "disk" and dtype == "float32":
        return BANKS[kind](shard, width, **options)
    assert kind != "device", "on the device the rows are used in place, as float32"
    make = partial(FileRecords, folder) if kind == "disk" else MemoryRecords
    return WindowBank(
        make, np.dtype(np.float32 if dtype == "float32" else np.uint16), shard, width, **options
    )


def window_bytes(record_width: int, itemsize: int, classes: int, selected: int) -> dict[str, int]:
    """What a bank with a window has in memory besides gradient and rows at rest: two windows, or without sampling that of a block; and rows
    between record and float32, of the threads that draw the initial ones and of the one that reads and writes. How much of the latter the
    process keeps is malloc's choice; the numbers here fit what was measured.

    Args:
        record_width: numbers of a record. itemsize: bytes of each. classes: S. selected: K, all of them without sampling.
    """
    block = min(classes, _ROWS_AT_ONCE)
    rows = block if selected == classes else 2 * selected
    return {
        "window": rows * record_width * 4,
        "rows on their way": block * record_width * itemsize * (5 * _THREADS + 8) // 4,
    }


class StoredRows:
    """One array of a bank as a checkpoint takes it: `.dtype`, `.shape`, and rows by slice or by numbers, read when they are asked for. bfloat16 is
    given as uint16, its bits; `code` names it in a checkpoint's file."""

    def __init__(self, bank: WindowBank, name: str, dtype: np.dtype, shape: tuple[int, ...]):
        self._bank, self._name, self.dtype, self.shape = bank, name, dtype, shape
        self.code = "BF16" if dtype == np.uint16 else None

    @property
    def finite(self) -> bool:
        """Whether all rows of the bank have been finite numbers since they were last loaded whole."""
        return self._bank.finite

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            rows = slice(start, max(start, stop))
        return self._bank.read_rows(rows)[self._name]

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.asarray(half.float32_of(self[:]), dtype)


class _Window:
    """Room for rows in float32, which grows; slot i of each array belongs to one class."""

    def __init__(self, widths: dict[str, int]):
        self._widths, self._room, self.arrays = widths, -1, {}

    def reserve(self, count: int, spare: int = 0) -> None:
        """Have at least that many slots; what is in the slots stays."""
        if count <= self._room:
            return
        self._room, before = count + spare, self.arrays
        self.arrays = {
            name: np.empty((self._room, width) if width else self._room, np.float32)
            for name, width in self._widths.items()
        }
        for name, array in before.items():
            self.arrays[name][: len(array)] = array


class _Ahead:
    """Rows of the next step: which (int64, rising; slot i has row i), and which of them are in their slots already."""

    def __init__(self):
        self.rows, self.there = np.empty(0, np.int64), np.empty(0, bool)


class WindowBank(HostBank):
    """Args: make_records: (count, width, dtype) -> where the rows rest; dtype: float32, or uint16 for bfloat16; the others as of `Bank`."""

    def __init__(self, make_records: Callable, dtype: np.dtype, shard: ClassShard, width: int, **options):
        names = ["centres", "bias"] if options["bias"] else ["centres"]
        names = [full for name in names for full in (name, momentum_of(name))]
        self._widths = {name: 0 if name.startswith("bias") else width for name in names}
        ends = np.cumsum([max(1, width) for width in self._widths.values()]).tolist()
        self._columns = {name: slice(start, stop) for name, start, stop in zip(names, [0, *ends], ends)}
        self._make, self._dtype, self._record_width = make_records, dtype, ends[-1]
        super().__init__(shard, width, **options)

    def _fill(self, seed, std):
        self._at_rest = self._make(self.shard.size, self._record_width, self._dtype)
        self._seed, self._std, self._filled = seed, std, 0
        self._values, self._momenta = {}, {}
        self._window, self._next, self._ahead = _Window(self._widths), _Window(self._widths), _Ahead()
        self._thread, self._jobs = ThreadPoolExecutor(1, "bank"), []
        self.finite, self.itemsize = True, self._dtype.itemsize

    # -- rows at rest -------------------------------------------------------------------------------------------------------

    @property
    def _records(self) -> FileRecords | MemoryRecords:
        """With the initial rows, unless a checkpoint's came before anybody looked."""
        self.settle()
        return self._at_rest

    def settle(self):
        count = self.shard.size - self._filled
        if not count:
            return
        starts = range(self._filled, self.shard.size, _ROWS_AT_ONCE)
        self._filled, began = self.shard.size, time.monotonic()
        size = count * self._record_width * self.itemsize
        if size > _TOLD:
            log.get_logger().info(f"writing the initial rows of {count:,} classes, {size / 2**20:,.0f} MB")
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(self._write_initial, starts))
        if size > _TOLD:
            log.get_logger().info(f"written in {time.monotonic() - began:.0f} s")

    def _write_initial(self, start: int) -> None:
        stop, first = min(start + _ROWS_AT_ONCE, self.shard.size), self.shard.start
        centres = initial_rows(self._seed, first + start, first + stop, self.width, self._std)
        records = np.zeros((stop - start, self._record_width), self._dtype)
        records[:, self._columns["centres"]] = self._nearest(centres)
        self._at_rest.write(slice(start, stop), records)

    def _nearest(self, records: np.ndarray) -> np.ndarray:
        return records if self._dtype == np.float32 else half.nearest(records)

    def _unpack(self, records: np.ndarray) -> dict[str, np.ndarray]:
        """[k, width] or [k] of each array, views."""
        return {
            name: records[:, columns] if self._widths[name] else records[:, columns.start]
            for name, columns in self._columns.items()
        }

    def _load(self, rows: np.ndarray, window: _Window, slots: np.ndarray) -> None:
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            unpack(self._records.read(rows[part]), list(window.arrays.values()), slots[part])

    def _store(self, rows: np.ndarray, window: _Window, slots: np.ndarray, step: int) -> None:
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part, keys = slice(start, start + _ROWS_AT_ONCE), None
            if self._dtype != np.float32:
                keys = half.keys_of(self._seed, step, rows[part] + self.shard.start)
            records, finite = pack(list(window.arrays.values()), slots[part], keys)
            self.finite = self.finite and finite
            self._records.write(rows[part], records)

    def finish(self):
        self._wait()

    def sync(self, drop: bool = False) -> float:
        """Wait for what is read and written, then as `FileRecords.sync`; only of a bank in a file."""
        self._wait()
        return self._records.sync(drop)

    # -- the thread ---------------------------------------------------------------------------------------------------------

    def _later(self, work: Callable, *args) -> Future:
        self._jobs.append(self._thread.submit(work, *args))
        return self._jobs[-1]

    def _wait(self) -> None:
        """Until all jobs are done; raises what one of them did."""
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            job.result()

    def _read_ahead(self, draw: Callable, ahead: _Ahead, current: np.ndarray, window: _Window) -> None:
        rows = draw()
        window.reserve(len(rows), _SPARE)
        there = np.isin(rows, current, assume_unique=True, invert=True)  # the others will yet move
        self._load(rows[there], window, np.flatnonzero(there))
        ahead.rows, ahead.there = rows, there

    def _read_moved(self, ahead: _Ahead, window: _Window) -> None:
        slots = np.flatnonzero(~ahead.there)
        self._load(ahead.rows[slots], window, slots)
        ahead.there[:] = True

    # -- the step -----------------------------------------------------------------------------------------------------------

    @property
    def selected(self):
        return self.shard.size if self._rows is None else len(self._rows)

    @property
    def index(self):
        return np.arange(self.shard.size) if self._rows is None else self._rows

    @property
    def names(self):
        return [name for name in self._widths if "momentum" not in name]

    def host_rows(self, name):
        return None if self._rows is None else super().host_rows(name)

    def select(self, index_K):
        self._rows = index_K
        self._wait()
        if index_K is None:
            return super().select(None)
        self._window, self._next, ahead, self._ahead = self._next, self._window, self._ahead, _Ahead()
        slots = np.searchsorted(ahead.rows, index_K)
        known = slots < len(ahead.rows)
        known[known] = (ahead.rows[slots[known]] == index_K[known]) & ahead.there[slots[known]]
        missing = np.flatnonzero(~known)
        slots[missing] = len(ahead.rows) + np.arange(len(missing))
        self._window.reserve(len(ahead.rows) + len(missing), _SPARE)
        self._load(index_K[missing], self._window, slots[missing])
        super().select(slots)
        self._show(self._window.arrays)

    def _show(self, arrays: dict[str, np.ndarray]) -> None:
        """Let the host bank work on these."""
        self._values = {name: arrays[name] for name in self.names}
        self._momenta = {name: arrays[momentum_of(name)] for name in self._values}

    def prefetch(self, draw):
        self._later(self._read_ahead, draw, self._ahead, self._rows, self._next)

    def rows(self, name, start, stop):
        if self._rows is None:
            return paddle.to_tensor(
                np.ascontiguousarray(half.float32_of(self.read_rows(slice(start, stop))[name]))
            )
        return super().rows(name, start, stop)

    def gather(self, name, number_P):
        if self._rows is None:
            found = self._unpack(half.float32_of(self._records.read(number_P.numpy())))
            return paddle.to_tensor(np.ascontiguousarray(found[name]))
        return super().gather(name, number_P)

    def update(self, lr, step=0):
        if self._rows is None:
            return self._update_all(lr, step)
        super().update(lr, step)
        self._later(self._store, self._rows, self._window, self._chosen, step)
        self._later(self._read_moved, self._ahead, self._next)

    def _update_all(self, lr: float, step: int) -> None:
        """The shard block by block, each block a window of its own."""
        gradients = self._grads
        for start in range(0, self.shard.size, _ROWS_AT_ONCE):
            rows = np.arange(start, min(start + _ROWS_AT_ONCE, self.shard.size))
            slots = rows - start
            self._window.reserve(len(rows))
            self._load(rows, self._window, slots)
            self._rows, self._chosen = rows, slots
            self._show(self._window.arrays)
            self._grads = {name: grad[start : start + len(rows)] for name, grad in gradients.items()}
            super().update(lr, step)
            self._store(rows, self._window, slots, step)
        self._rows, self._chosen, self._grads = None, None, gradients

    # -- checkpoints --------------------------------------------------------------------------------------------------------

    def state(self):
        return {
            name: StoredRows(
                self, name, self._dtype, (self.shard.size, width) if width else (self.shard.size,)
            )
            for name, width in self._widths.items()
        }

    def read_rows(self, rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        """These rows of the shard as they rest, views by name."""
        self._wait()
        return self._unpack(self._records.read(rows))

    def load_rows(self, start, rows):
        self._wait()
        self._ahead = _Ahead()
        stop = start + len(rows["centres"])
        given = {rows[name].dtype for name in self._widths}
        records = np.empty(
            (stop - start, self._record_width), self._dtype if given == {self._dtype} else np.float32
        )
        for name, array in self._unpack(records).items():
            array[...] = rows[name] if records.dtype == rows[name].dtype else half.float32_of(rows[name])
        if start == self._filled:
            self._filled = stop  # the initial rows are not needed
        store = self._records if self._filled < stop else self._at_rest
        store.write(slice(start, stop), records if records.dtype == self._dtype else self._nearest(records))
        self.finite = (self.finite or start == 0) and bool(np.isfinite(half.float32_of(records)).all())
