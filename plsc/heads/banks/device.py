"""Keep class centres on the device that Paddle computes on."""

from __future__ import annotations

from functools import partial

import numpy as np
import paddle

from plsc import native as kernels
from plsc.distributed.device import asynchronous, on_device, to_device
from plsc.heads.banks.bank import INIT_ROWS, Bank, initial_blocks
from plsc.heads.banks.state_rows import StateRows
from plsc.heads.optimizer import Rule
from plsc.utils.bfloat16 import float32_of
from plsc.utils.sharding import ClassShard
from plsc.utils.tensors import host_view, large_tensor, rows_in_place, write_rows

_UPDATE_NUMBERS = 1 << 28  # of each array that a GPU takes at a time: an update has temporaries as large


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

    def select(self, index_K, spare=0):
        super().select(index_K)
        self._index_tensor = None
        self._fetched = {}
        if index_K is not None:
            self._index_tensor = to_device(np.append(index_K, np.full(spare, self.shard.size)))

    @property
    def selected(self):
        return self.shard.size if self._index_tensor is None else len(self._index_tensor)

    @property
    def rows_at_once(self):
        return max(1, _UPDATE_NUMBERS // self.width) if asynchronous() else super().rows_at_once

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

    def _update(self, update, step):
        by_kernels = kernels.library() is not None and not on_device()
        for name, grad in self.gradients().items():
            names = [name, *self.moments_of(name)]
            if by_kernels:
                value, *moments = map(self._array, names)
                self.rule.update_host(name, value, moments, self._index_K, grad, update)
                continue
            for start in range(0, self.selected, self.rows_at_once):
                stop = min(start + self.rows_at_once, self.selected)
                tensors = [self.rows(each, start, stop) for each in names]
                self.rule.update_device(name, tensors[0], tensors[1:], grad[start:stop], update)
                for each, updated in zip(names, tensors):
                    if self._index_tensor is None:
                        write_rows(self._tables[each], start, updated)
                    else:
                        paddle.scatter_(self._tables[each], self._index_tensor[start:stop], updated)
        self._fetched = {}

    # -- checkpoints

    def state(self):
        if not on_device():
            return {name: host_view(self._array(name)) for name in self._tables}
        return {
            name: StateRows(partial(self._read, name), np.float32, tuple(self._array(name).shape))
            for name in self._tables
        }

    def _read(self, name: str, rows: slice | np.ndarray) -> np.ndarray:
        if isinstance(rows, slice):
            return self._array(name)[rows].numpy()
        return paddle.gather(self._array(name), to_device(rows)).numpy()

    def load_rows(self, start, rows):
        for name in self._tables:
            if len(rows[name]):
                self._write(name, start, float32_of(rows[name]))
