"""Keep class centres on the device that Paddle computes on."""

from functools import partial

import numpy as np
import paddle

from plsc import native as kernels
from plsc.distributed.device import on_device, to_device
from plsc.heads.banks.bank import Bank, StateRows
from plsc.heads.banks.tensors import host_view, large_tensor, rows_in_place, write_rows
from plsc.heads.optimizer import Rule
from plsc.heads.sampling import ClassShard
from plsc.native.bfloat16 import float32_of


class DeviceBank(Bank):
    """Keeps the rows on the device that Paddle computes on; without sampling they are used in place."""

    def __init__(self, shard: ClassShard, width: int, *, bias: bool, rule: Rule):
        super().__init__(shard, width, bias=bias, rule=rule)
        self._tables = {name: large_tensor(shape).zero_() for name, shape in self.shapes.items()}
        self.select(None)

    def select(self, index_K):
        super().select(index_K)
        self._index_tensor = None if index_K is None else to_device(index_K)
        self._fetched = {}

    def _selected(self, name: str) -> paddle.Tensor:
        """Return all selected rows, which are copied once in a step."""
        if self._index_tensor is None:
            return self._tables[name]
        if name not in self._fetched:
            self._fetched[name] = paddle.gather(self._tables[name], self._index_tensor)
        return self._fetched[name]

    def rows(self, name, start, stop):
        return rows_in_place(self._selected(name), start, stop)

    def gather(self, name, number_P):
        return paddle.gather(self._selected(name), number_P)

    def host_rows(self, name):
        return None if on_device() else (self._tables[name], self.index_K)

    def _update(self, update, step):
        for name, grad in self.gradients().items():
            names = self.arrays_of(name)
            if self.rule.kernel and kernels.library() and not on_device():
                self.update_by_kernel(name, self._tables, self.index_K, grad, update)
                continue
            for start in range(0, self.selected, self.rows_at_once):
                stop = min(start + self.rows_at_once, self.selected)
                tensors = [self.rows(each, start, stop) for each in names]
                self.rule.update_rows(name, tensors[0], tensors[1:], grad[start:stop], update)
                for each, updated in zip(names, tensors):
                    if self._index_tensor is None:
                        write_rows(self._tables[each], start, updated)
                    else:
                        paddle.scatter_(self._tables[each], self._index_tensor[start:stop], updated)
        self._fetched = {}

    def state(self):
        if not on_device():
            return {name: host_view(table) for name, table in self._tables.items()}
        return {
            name: StateRows(partial(_read, table), np.float32, self.shapes[name])
            for name, table in self._tables.items()
        }

    def load_rows(self, start, rows):
        for name, array in rows.items():
            write_rows(self._tables[name], start, paddle.to_tensor(float32_of(array)))


def _read(table: paddle.Tensor, rows: slice) -> np.ndarray:
    return table[rows].numpy()
