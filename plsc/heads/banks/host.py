"""Store class centres in host memory, where more centres fit than on a device, and update them on the CPU."""

from collections.abc import Mapping

import numpy as np
import paddle

from plsc import native as kernels
from plsc.distributed.device import tensor_of
from plsc.heads.banks.bank import Bank, Selection
from plsc.heads.banks.tensors import host_view
from plsc.heads.optimizer import Rule, Update
from plsc.heads.sampling import ClassShard
from plsc.native.bfloat16 import float32_of
from plsc.native.heads import rows as row_kernels


class HostBank(Bank):
    """Stores all rows in host memory."""

    def __init__(self, shard: ClassShard, width: int, *, bias: bool, rule: Rule):
        super().__init__(shard, width, bias=bias, rule=rule)
        self._arrays = {name: np.zeros(shape, np.float32) for name, shape in self.shapes.items()}

    def select(self, index_K):
        return MemorySelection(self, index_K, self._arrays, index_K)

    def state(self):
        return dict(self._arrays)

    def _load_rows(self, start, rows):
        for name, array in rows.items():
            self._arrays[name][start : start + len(array)] = float32_of(array)


class MemorySelection(Selection):
    """Represents rows in host memory. A block of rows is copied to the device when the device needs this
    block.

    Args:
        bank: bank that the selection belongs to.
        index_K: row numbers in the shard, int64 [K], in ascending order, or None for all rows.
        arrays: arrays that contain the rows, by name, float32.
        slots_K: where the selected rows are in these arrays, int64 [K], or None for all rows.
    """

    def __init__(
        self,
        bank: Bank,
        index_K: np.ndarray | None,
        arrays: Mapping[str, np.ndarray],
        slots_K: np.ndarray | None,
    ):
        super().__init__(bank, index_K)
        self._arrays = arrays
        self._slots_K = slots_K

    def rows(self, name, start, stop):
        if self._slots_K is None:
            return paddle.to_tensor(self._arrays[name][start:stop])
        return self._fetch(name, self._slots_K[start:stop])

    def gather(self, name, number_P):
        number_P = number_P.numpy()
        return self._fetch(name, number_P if self._slots_K is None else self._slots_K[number_P])

    def _fetch(self, name: str, slots: np.ndarray) -> paddle.Tensor:
        array = self._arrays[name]
        if not kernels.library():
            return tensor_of(array[slots])
        fetched = np.empty((len(slots), *array.shape[1:]), np.float32)
        row_kernels.gather(array, slots, fetched)
        return tensor_of(fetched)

    def host_rows(self, name):
        return self._arrays[name], self._slots_K

    def _update(self, update, step):
        update_arrays(self.bank, self._arrays, self._slots_K, self.gradients(), update)


def update_arrays(
    bank: Bank,
    arrays: Mapping[str, np.ndarray],
    slots_K: np.ndarray | None,
    gradients: Mapping[str, paddle.Tensor],
    update: Update,
) -> None:
    """Update rows of arrays in host memory with their gradients.

    Args:
        bank: bank whose rule is applied.
        arrays: values and moments by name, float32.
        slots_K: where the rows are in these arrays, int64 [K], or None for all rows.
        gradients: the rows' gradients, by the value's name.
        update: the learning rate and this update's other numbers.
    """
    for name, grad in gradients.items():
        if bank.rule.kernel and kernels.library():
            bank.update_by_kernel(name, arrays, slots_K, host_view(grad), update)
            continue
        names = bank.arrays_of(name)
        for start in range(0, len(grad), bank.rows_at_once):
            part = slice(start, min(start + bank.rows_at_once, len(grad)))
            rows = part if slots_K is None else slots_K[part]
            tensors = [tensor_of(arrays[each][rows]) for each in names]
            bank.rule.update_rows(name, tensors[0], tensors[1:], grad[part], update)
            for each, tensor in zip(names, tensors):
                arrays[each][rows] = tensor.numpy()
