"""Where a shard's class centres and their momentum live, and the one place that changes them.

    S classes in this rank's shard   K of them selected for the step (all: K = S)   D embedding size   b rows of a class block

A step selects rows, works on them by their numbers 0..K-1, and applies momentum SGD to them alone; the others keep their bytes:
    v <- mu v + g + decay w;  w <- w - lr v        (Paddle's Momentum; the bias, where there is one, is not decayed)
A row's initial value depends on (seed, row) alone, so any number of ranks starts from the same centres.
"""

from __future__ import annotations

import numpy as np
import paddle
from paddle import _C_ops
from paddle.utils import dlpack

from plsc.sharding import ClassShard

_INIT_ROWS = 4096  # rows that share one random stream; changing it changes every run's initial centres

_UPDATE_ROWS = 4096  # selected rows that are fetched, moved and written back at a time


def initial_rows(seed: int, start: int, stop: int, width: int, std: float) -> np.ndarray:
    """Rows [start, stop) of the class matrix, N(0, std), float32 [stop - start, width]; the same for any split of the classes."""
    rows = np.empty((stop - start, width), np.float32)
    for first in range(start - start % _INIT_ROWS, stop, _INIT_ROWS):
        rng = np.random.Generator(np.random.PCG64([seed, first // _INIT_ROWS]))
        drawn = rng.standard_normal((_INIT_ROWS, width), np.float32)
        low, high = max(first, start), min(first + _INIT_ROWS, stop)
        rows[low - start : high - start] = drawn[low - first : high - first]
    rows *= np.float32(std)
    return rows


class DeviceBank:
    """Centres [S, D] and optionally a bias [S], with their momentum and gradient, on the device that Paddle computes on.

    Memory: three arrays (value, momentum, gradient) of S * (D + bias) float32. `momentum` and `weight_decay` are per step.
    """

    def __init__(
        self,
        shard: ClassShard,
        width: int,
        *,
        bias: bool,
        std: float,
        seed: int,
        momentum: float,
        weight_decay: float,
    ):
        self.shard, self.width = shard, width
        self._mu, self._decay = momentum, weight_decay
        values = {"centres": paddle.to_tensor(initial_rows(seed, shard.start, shard.stop, width, std))}
        if bias:
            values["bias"] = paddle.zeros([shard.size])
        self._values = values
        self._momenta = {name: paddle.zeros_like(value) for name, value in values.items()}
        self._grads: dict[str, paddle.Tensor] = {}
        self._index_K: paddle.Tensor | None = None

    @property
    def bias(self) -> bool:
        return "bias" in self._values

    @property
    def selected(self) -> int:
        """K, the number of rows that take part in the step."""
        return self.shard.size if self._index_K is None else len(self._index_K)

    def select(self, index_K: np.ndarray | None) -> None:
        """Let these rows of the shard (int64 [K], rising) take part until the next call; None: all of them."""
        self._index_K = None if index_K is None else paddle.to_tensor(index_K)

    @property
    def index(self) -> np.ndarray:
        """The selected rows, int64 [K], rising."""
        return np.arange(self.shard.size) if self._index_K is None else self._index_K.numpy()

    def rows(self, name: str, start: int, stop: int) -> paddle.Tensor:
        """Selected rows [start, stop) of "centres" or "bias", to read: a view if all are selected, else a copy."""
        return _cut(self._values[name], self._index_K, start, stop)

    def gather(self, name: str, number_P: paddle.Tensor) -> paddle.Tensor:
        """A copy of the selected rows with these numbers (int64 [P]) of "centres" or "bias"."""
        index_P = number_P if self._index_K is None else paddle.gather(self._index_K, number_P)
        return paddle.gather(self._values[name], index_P)

    def set_gradient(self, name: str, start: int, stop: int, grad: paddle.Tensor) -> None:
        """Keep the gradient of selected rows [start, stop) for the next `update`. Every selected row must be set before it."""
        if name not in self._grads or self._grads[name].shape[0] != self.selected:
            self._grads[name] = paddle.empty([self.selected, *self._values[name].shape[1:]])
        paddle.assign(grad, output=self._grads[name][start:stop])

    def gradients(self) -> dict[str, paddle.Tensor]:
        """Gradients of the selected rows by name, [K, D] and [K]; empty before the first backward."""
        return self._grads

    def update(self, lr: float) -> None:
        """One momentum SGD step on the selected rows, with the gradients set since they were selected."""
        assert self._grads or not self.selected, "update() before a backward pass"
        rate = paddle.to_tensor(lr, dtype="float32")
        block = max(1, self.selected) if self._index_K is None else _UPDATE_ROWS
        for name, grad in self._grads.items():
            decay = ("l2_decay", self._decay) if name == "centres" and self._decay else ("", 0.0)
            for start in range(0, self.selected, block):
                stop = min(start + block, self.selected)
                value, momentum = (
                    _cut(x[name], self._index_K, start, stop) for x in (self._values, self._momenta)
                )
                _C_ops.momentum_(
                    value, grad[start:stop], momentum, rate, None, self._mu, False, *decay, False, 1.0
                )
                if self._index_K is not None:
                    index = self._index_K[start:stop]
                    paddle.scatter_(self._values[name], index, value)
                    paddle.scatter_(self._momenta[name], index, momentum)

    def state(self) -> dict[str, np.ndarray]:
        """Everything that a checkpoint needs, by name, first axis the shard's classes. On the CPU these are views, not copies:
        they change with the next update."""
        momenta = {_momentum_of(name): momentum for name, momentum in self._momenta.items()}
        return {name: _host_view(tensor) for name, tensor in {**self._values, **momenta}.items()}

    def load_rows(self, start: int, rows: dict[str, np.ndarray]) -> None:
        """Take over `rows`, cut from what `state()` gave on any split of the classes; they go to [start, start + len)."""
        for name, value in self._values.items():
            stop = start + len(rows[name])
            for target, source in ((value, name), (self._momenta[name], _momentum_of(name))):
                if stop > start:
                    paddle.assign(paddle.to_tensor(rows[source]), output=target[start:stop])


def _cut(x: paddle.Tensor, index_K: paddle.Tensor | None, start: int, stop: int) -> paddle.Tensor:
    return x[start:stop] if index_K is None else paddle.gather(x, index_K[start:stop])


def _momentum_of(name: str) -> str:
    """ "momentum" belongs to "centres", "bias_momentum" to "bias"."""
    return "momentum" if name == "centres" else f"{name}_momentum"


class _Exporter:
    """Lends a CPU tensor's memory by the array interchange protocol; on Paddle 2.6 Tensor itself cannot."""

    def __init__(self, tensor: paddle.Tensor):
        self._tensor = tensor

    def __dlpack__(self, **_):
        return dlpack.to_dlpack(self._tensor)

    def __dlpack_device__(self):
        return 1, 0  # the CPU


def _host_view(tensor: paddle.Tensor) -> np.ndarray:
    return (
        np.from_dlpack(_Exporter(tensor)) if tensor.size and tensor.place.is_cpu_place() else tensor.numpy()
    )
