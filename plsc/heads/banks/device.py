"""Keep class centres on the device that Paddle computes on."""

from __future__ import annotations

import numpy as np
import paddle
from paddle import _C_ops

from plsc import native as kernels
from plsc.distributed.device import asynchronous, on_device, to_device
from plsc.heads.banks.bank import INIT_ROWS, UPDATE_ROWS, Bank, initial_blocks
from plsc.heads.optimizer import Rule, Update
from plsc.utils.bfloat16 import float32_of
from plsc.utils.sharding import ClassShard
from plsc.utils.tensors import host_view, large_tensor, rows_in_place, tensor_of, write_rows

_NUMBERS_AT_ONCE = 1 << 30  # that one reduction on a device adds up: some count them in 32 bits
_UPDATE_NUMBERS = 1 << 28  # of each array that a GPU updates at a time: an update has temporaries as large


def _sum_of_squares(rows: paddle.Tensor) -> paddle.Tensor:
    """Sum the squares, however many numbers there are -> float32 scalar on the device."""
    piece = max(1, _NUMBERS_AT_ONCE * len(rows) // max(1, rows.size))
    totals = [
        _C_ops.squared_l2_norm(rows[start : start + piece]).reshape([])
        for start in range(0, len(rows), piece)
    ]
    return paddle.add_n(totals) if totals else paddle.zeros([])


class DeviceBank(Bank):
    """Keeps the rows on the device that Paddle computes on; without sampling they are used in place.

    Each array has one row more than the shard has classes, of zeros, which fills up the selected rows.
    """

    def __init__(self, shard: ClassShard, width: int, *, bias: bool, rule: Rule, std: float, seed: int):
        super().__init__(shard, width, bias=bias, rule=rule)
        self._tables = {}
        for name in self.names:
            shape = [shard.size + 1, width] if name == "centres" else [shard.size + 1]
            for array in (name, *self.moments_of(name)):
                self._tables[array] = large_tensor(shape).zero_()
        self.has_zeros = False
        for first, block in initial_blocks(seed, shard.start, shard.stop, width, std):
            self._write("centres", first, block)
        self.select(None)

    def _write(self, name: str, start: int, rows: np.ndarray) -> None:
        """Overwrite the rows from `start` on."""
        for first in range(0, len(rows), INIT_ROWS):
            given = rows[first : first + INIT_ROWS]
            write_rows(self._tables[name], start + first, paddle.to_tensor(given))
            if name == "centres":
                self.has_zeros = self.has_zeros or not given.any(axis=1).all()

    def _array(self, name: str) -> paddle.Tensor:
        """Return an array's rows of the shard's classes, to be read, or written by a kernel."""
        return rows_in_place(self._tables[name], 0, self.shard.size)

    # -- the rows of a step
    # -------------------------------------------------------------------------------------------------

    def select(self, index_K, spare=0):
        super().select(index_K)
        self._index_tensor = None
        self._fetched = {}
        if index_K is not None:
            self._index_tensor = to_device(np.append(index_K, np.full(spare, self.shard.size)))

    @property
    def selected(self):
        return self.shard.size if self._index_tensor is None else len(self._index_tensor)

    def rows(self, name, start, stop):
        if self._index_tensor is None:
            return rows_in_place(self._tables[name], start, stop)
        if asynchronous():
            return self._fetch(name)[start:stop]
        return paddle.gather(self._tables[name], self._index_tensor[start:stop])

    def _fetch(self, name: str) -> paddle.Tensor:
        """Copy all selected rows, once in a step."""
        if name not in self._fetched:
            self._fetched[name] = paddle.gather(self._tables[name], self._index_tensor)
        return self._fetched[name]

    def gather(self, name, number_P):
        if self._index_tensor is None:
            return paddle.gather(self._tables[name], number_P)
        if asynchronous():
            return paddle.gather(self._fetch(name), number_P)
        return paddle.gather(self._tables[name], paddle.gather(self._index_tensor, number_P))

    def host_rows(self, name):
        array = self._array(name)
        return (array, self._index_K) if array.place.is_cpu_place() else None

    # -- updates
    # ------------------------------------------------------------------------------------------------------------

    def _update(self, update, step):
        by_kernels = kernels.library() is not None and not on_device()
        for name, grad in self.gradients().items():
            names = [name, *self.moments_of(name)]
            if by_kernels:
                value, *moments = map(self._array, names)
                self.rule.update_host(name, value, moments, self._index_K, grad, update)
                continue
            piece = max(1, _UPDATE_NUMBERS // self.width) if asynchronous() else UPDATE_ROWS
            for start in range(0, self.selected, piece):
                stop = min(start + piece, self.selected)
                self._update_rows(names, start, stop, grad[start:stop], update)
        self._fetched = {}

    def _update_rows(
        self, names: list[str], start: int, stop: int, grad: paddle.Tensor, update: Update
    ) -> None:
        """Update selected rows [start, stop) of a part and its moments: in place where they have their
        address, or in copies that are written where they belong."""
        value, *moments = (self.rows(name, start, stop) for name in names)
        self.rule.update_device(names[0], value, moments, grad, update)
        for name, updated in zip(names, (value, *moments)):
            if self._index_tensor is None:
                write_rows(self._tables[name], start, updated)
            else:
                paddle.scatter_(self._tables[name], self._index_tensor[start:stop], updated)

    def squares(self):
        if not asynchronous():
            return super().squares()
        both = (self.rows("centres", 0, self.selected), self.gradients()["centres"])
        return paddle.stack([_sum_of_squares(rows) for rows in both]).astype("float64")

    # -- checkpoints
    # --------------------------------------------------------------------------------------------------------

    def state(self):
        make = host_view if not on_device() else DeviceRows
        return {name: make(self._array(name)) for name in self._tables}

    def load_rows(self, start, rows):
        for name in self._tables:
            if len(rows[name]):
                self._write(name, start, float32_of(rows[name]))


class DeviceRows:
    """Presents an array on a device to a checkpoint, and copies rows to the host only when they are indexed,
    by slice or by numbers."""

    code = None

    def __init__(self, array: paddle.Tensor):
        self._array = array
        self.dtype = np.dtype(np.float32)
        self.shape = tuple(array.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            return self._array[start : max(start, stop)].numpy()
        return paddle.gather(self._array, tensor_of(np.asarray(rows, np.int64))).numpy()

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.asarray(self._array.numpy(), dtype)
