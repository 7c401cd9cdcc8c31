"""Keep class centres in the machine's memory, where more of them fit, and update them on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import paddle

from plsc import native as kernels
from plsc.heads.banks.bank import UPDATE_ROWS, Bank, initial_rows
from plsc.heads.optimizer import Rule, Update
from plsc.native.heads import rows as row_kernels
from plsc.utils.bfloat16 import float32_of
from plsc.utils.sharding import ClassShard
from plsc.utils.tensors import host_view, tensor_of


class HostRows:
    """Reads some rows of arrays in host memory for the device, and updates them on the CPU.

    Args:
        arrays: float32, by name, with the moments. index_K: which rows, int64; None: all.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], index_K: np.ndarray | None):
        self.arrays = arrays
        self.index_K = index_K

    def read(self, name: str, start: int, stop: int) -> paddle.Tensor:
        """Copy the selected rows [start, stop)."""
        if self.index_K is None:
            return paddle.to_tensor(self.arrays[name][start:stop])
        return self._fetch(name, self.index_K[start:stop])

    def gather(self, name: str, number_P: paddle.Tensor) -> paddle.Tensor:
        """Copy the selected rows with these numbers."""
        number_P = number_P.numpy()
        return self._fetch(name, number_P if self.index_K is None else self.index_K[number_P])

    def _fetch(self, name: str, index: np.ndarray) -> paddle.Tensor:
        array = self.arrays[name]
        fetched = np.empty((len(index), *array.shape[1:]), np.float32)
        if kernels.library():
            row_kernels.gather(array, index, fetched)
        else:
            np.take(array, index, axis=0, out=fetched)
        return tensor_of(fetched)

    def update(
        self,
        rule: Rule,
        gradients: dict[str, paddle.Tensor],
        moments_of: Callable[[str], list[str]],
        update: Update,
    ) -> None:
        """Update the selected rows by their gradients."""
        for name, grad in gradients.items():
            arrays = [self.arrays[each] for each in (name, *moments_of(name))]
            # A kernel has no temporaries and takes all rows at once.
            in_one = kernels.library() and grad.place.is_cpu_place()
            piece = max(1, len(grad)) if in_one else UPDATE_ROWS
            for start in range(0, len(grad), piece):
                part = slice(start, min(start + piece, len(grad)))
                if not kernels.library():
                    rows = part if self.index_K is None else self.index_K[part]
                    value, *moments = tensors = [tensor_of(array[rows]) for array in arrays]
                    rule.update_device(name, value, moments, grad[part], update)
                    for array, tensor in zip(arrays, tensors):
                        array[rows] = tensor.numpy()
                    continue
                if self.index_K is None:
                    value, *moments = (array[part] for array in arrays)
                    index = None
                else:
                    value, *moments = arrays
                    index = self.index_K[part]
                rule.update_host(name, value, moments, index, host_view(grad[part]), update)


class HostBank(Bank):
    """Keeps the rows in host memory and updates them on the CPU; the device gets those of the block that it
    works on."""

    def __init__(self, shard: ClassShard, width: int, *, bias: bool, rule: Rule, std: float, seed: int):
        super().__init__(shard, width, bias=bias, rule=rule)
        self._arrays = {"centres": initial_rows(seed, shard.start, shard.stop, width, std)}
        if bias:
            self._arrays["bias"] = np.zeros(shard.size, np.float32)
        for name in self.names:
            for moment in self.moments_of(name):
                self._arrays[moment] = np.zeros_like(self._arrays[name])
        self.select(None)

    def select(self, index_K, spare=0):
        super().select(index_K)
        self._rows = HostRows(self._arrays, index_K)

    def rows(self, name, start, stop):
        return self._rows.read(name, start, stop)

    def gather(self, name, number_P):
        return self._rows.gather(name, number_P)

    def host_rows(self, name):
        return self._arrays[name], self._index_K

    def _update(self, update, step):
        self._rows.update(self.rule, self.gradients(), self.moments_of, update)

    def state(self):
        return dict(self._arrays)

    def load_rows(self, start, rows):
        for name, array in self._arrays.items():
            array[start : start + len(rows[name])] = float32_of(rows[name])
