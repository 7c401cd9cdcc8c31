"""Store class centres in the memory of the device that Paddle computes on."""

from functools import partial

import numpy as np
import paddle

from plsc import native as kernels
from plsc.distributed.device import on_device, to_device
from plsc.heads.banks.bank import Bank, Selection, StateRows
from plsc.heads.banks.tensors import host_view, large_tensor, rows_in_place, write_rows
from plsc.heads.optimizer import Rule
from plsc.heads.sampling import ClassShard
from plsc.native.bfloat16 import float32_of


class DeviceBank(Bank):
    """Stores the rows on the device that Paddle computes on. Without sampling, a step reads and updates them
    without a copy.

    Attributes:
        tables: values and moments by name, tensors with S rows.
    """

    def __init__(self, shard: ClassShard, width: int, *, bias: bool, rule: Rule):
        super().__init__(shard, width, bias=bias, rule=rule)
        self.tables = {name: large_tensor(shape).zero_() for name, shape in self.shapes.items()}

    def select(self, index_K):
        return DeviceSelection(self, index_K)

    def state(self):
        if not on_device():
            return {name: host_view(table) for name, table in self.tables.items()}
        return {
            name: StateRows(partial(_read, table), np.float32, self.shapes[name])
            for name, table in self.tables.items()
        }

    def _load_rows(self, start, rows):
        for name, array in rows.items():
            write_rows(self.tables[name], start, paddle.to_tensor(float32_of(array)))


class DeviceSelection(Selection):
    """Represents rows in the bank's tensors. With sampling, the selected rows are copied once in a step."""

    bank: DeviceBank

    def __init__(self, bank: DeviceBank, index_K: np.ndarray | None):
        super().__init__(bank, index_K)
        self._index_tensor = None if index_K is None else to_device(index_K)
        self._fetched: dict[str, paddle.Tensor] = {}

    def _selected(self, name: str) -> paddle.Tensor:
        """Return all selected rows of an array, [K, width] or [K]. With sampling, the result is a copy that
        later calls in the same step return again."""
        if self._index_tensor is None:
            return self.bank.tables[name]
        if name not in self._fetched:
            self._fetched[name] = paddle.gather(self.bank.tables[name], self._index_tensor)
        return self._fetched[name]

    def rows(self, name, start, stop):
        return rows_in_place(self._selected(name), start, stop)

    def gather(self, name, number_P):
        return paddle.gather(self._selected(name), number_P)

    def host_rows(self, name):
        return None if on_device() else (self.bank.tables[name], self.index_K)

    def _update(self, update, step):
        bank = self.bank
        for name, grad in self.gradients().items():
            names = bank.arrays_of(name)
            if bank.rule.kernel and kernels.library() and not on_device():
                bank.update_by_kernel(name, bank.tables, self.index_K, grad, update)
                continue
            for start in range(0, self.count, bank.rows_at_once):
                stop = min(start + bank.rows_at_once, self.count)
                tensors = [self.rows(each, start, stop) for each in names]
                bank.rule.update_rows(name, tensors[0], tensors[1:], grad[start:stop], update)
                for each, updated in zip(names, tensors):
                    if self._index_tensor is None:
                        write_rows(bank.tables[each], start, updated)
                    else:
                        paddle.scatter_(bank.tables[each], self._index_tensor[start:stop], updated)
        self._fetched = {}


def _read(table: paddle.Tensor, rows: slice) -> np.ndarray:
    return table[rows].numpy()
