"""Where a shard's class centres and their momentum live, and the one place that changes them.

    S classes in this rank's shard   K of them selected for the step (all: K = S)   D embedding size   b rows of a class block

A step selects rows, works on them by their numbers 0..K-1, and applies momentum SGD to them alone; the others keep their bytes:
    v <- mu v + g + decay w;  w <- w - lr v        (Paddle's Momentum; the bias, where there is one, is not decayed)
`DeviceBank` keeps the rows on the device that computes, `HostBank` in host memory, where more of them fit; a step then carries the
selected rows over and their gradients back. A row's initial value depends on (seed, row) alone, so any number of ranks starts from the same centres.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import paddle
from paddle import _C_ops
from paddle.utils import dlpack

from plsc import kernels
from plsc.half import float32_of
from plsc.kernels import rows as row_kernels
from plsc.sharding import ClassShard
from plsc.tensors import tensor_of

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


class Bank(ABC):
    """Centres [S, width] and optionally a bias [S], with their momentum, and the gradient of the selected rows.

    Memory: value and momentum, S * (width + bias) float32 each, where the kind of bank keeps them; the gradient, K of these rows,
    on the device. `momentum` and `weight_decay` are per step.
    """

    itemsize = 4  # bytes of a number at rest, and in a checkpoint

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
        self.shard, self.width, self.bias = shard, width, bias
        self._mu, self._decay = momentum, weight_decay
        self._fill(seed, std)
        self._grads: dict[str, paddle.Tensor] = {}
        self.select(None)

    def _fill(self, seed: int, std: float) -> None:
        """Make the stores, with the initial rows."""
        shard = self.shard
        self._values = {"centres": self._keep(initial_rows(seed, shard.start, shard.stop, self.width, std))}
        if self.bias:
            self._values["bias"] = self._keep(np.zeros(shard.size, np.float32))
        self._momenta = {name: self._zeros_like(store) for name, store in self._values.items()}

    def _of_shard(self, start: int, stop: int):
        return slice(start, stop) if self._chosen is None else self._chosen[start:stop]

    # What the kinds do differently: a store is one of the arrays in self._values and self._momenta.

    @abstractmethod
    def _keep(self, rows: np.ndarray):
        """A store with these rows."""

    @abstractmethod
    def _zeros_like(self, store):
        """A store of that shape, all zero."""

    @abstractmethod
    def _read(self, store, start: int, stop: int) -> paddle.Tensor:
        """Selected rows [start, stop) of a store on the device: a view where that is possible."""

    @abstractmethod
    def _pick(self, store, number_P: paddle.Tensor) -> paddle.Tensor:
        """A copy of the selected rows with these numbers on the device."""

    @abstractmethod
    def _move(self, name: str, start: int, stop: int, grad: paddle.Tensor, lr: float, decay: float) -> None:
        """Momentum SGD on selected rows [start, stop)."""

    @abstractmethod
    def _put(self, store, start: int, rows: np.ndarray) -> None:
        """Overwrite rows of the shard, from `start` on."""

    @abstractmethod
    def _look(self, store) -> np.ndarray:
        """A store as numpy, without a copy where that is possible."""

    @abstractmethod
    def host_rows(self, name: str) -> tuple[np.ndarray | paddle.Tensor, np.ndarray | None] | None:
        """Rows in host memory for a kernel to read, and which of them are selected, int64 [K] (None: all); None where there are
        no such rows."""

    @property
    def selected(self) -> int:
        """K, the number of rows that take part in the step."""
        return self.shard.size if self._chosen is None else len(self._chosen)

    @property
    def index(self) -> np.ndarray:
        """The selected rows, int64 [K], rising."""
        return np.arange(self.shard.size) if self._chosen is None else self._chosen

    def settle(self) -> None:  # noqa: B027 (most banks have nothing to do)
        """Do now what would delay the first step: a bank that is far away writes the initial rows that no checkpoint has brought."""

    def finish(self) -> None:  # noqa: B027 (most banks have nothing to do)
        """Wait for what a bank that is far away does beside a step, as the next step does."""

    @property
    def names(self) -> list[str]:
        """What a row has: "centres", "bias"."""
        return list(self._values)

    def select(self, index_K: np.ndarray | None) -> None:
        """Let these rows of the shard (int64 [K], rising) take part until the next call; None: all of them."""
        self._chosen = index_K

    def rows(self, name: str, start: int, stop: int) -> paddle.Tensor:
        """Selected rows [start, stop) of "centres" or "bias", to read."""
        return self._read(self._values[name], start, stop)

    def gather(self, name: str, number_P: paddle.Tensor) -> paddle.Tensor:
        """A copy of the selected rows with these numbers (int64 [P]) of "centres" or "bias"."""
        return self._pick(self._values[name], number_P)

    def set_gradient(self, name: str, start: int, stop: int, grad: paddle.Tensor) -> None:
        """Keep the gradient of selected rows [start, stop) for the next `update`. Every selected row must be set before it."""
        paddle.assign(grad, output=self.gradient(name)[start:stop])

    def gradient(self, name: str) -> paddle.Tensor:
        """Where the gradient of the selected rows goes, [K, width] or [K]: as `set_gradient`, for who writes it in place."""
        held, needed = self._grads.get(name), self.selected
        if held is None or len(held) < needed:
            # Sampling takes a few more or less each step: some room, so that no later one needs new memory.
            room = needed + (0 if self._chosen is None else needed // 16)
            self._grads[name] = held = paddle.empty([room, self.width] if name == "centres" else [room])
        return held[:needed]

    def gradients(self) -> dict[str, paddle.Tensor]:
        """Gradients of the selected rows by name, [K, width] and [K]; empty before the first backward."""
        return {name: held[: self.selected] for name, held in self._grads.items()}

    def prefetch(self, draw: Callable[[], np.ndarray]) -> None:  # noqa: B027 (most banks have nothing to do)
        """After `select`: what the next step will select, as far as it is known. A bank whose rows are far away fetches them
        meanwhile; the others need not know, and do not call `draw`."""

    def update(self, lr: float, step: int = 0) -> None:
        """One momentum SGD step on the selected rows, with the gradients set since they were selected. The number of the training
        step is for a bank that rounds."""
        assert self._grads or not self.selected, "update() before a backward pass"
        for name, grad in self.gradients().items():
            decay = self._decay if name == "centres" else 0.0
            # A kernel needs no temporaries, so no pieces.
            whole = kernels.library() and grad.place.is_cpu_place()
            piece = max(1, self.selected) if whole else _UPDATE_ROWS
            for start in range(0, self.selected, piece):
                stop = min(start + piece, self.selected)
                self._move(name, start, stop, grad[start:stop], lr, decay)

    def state(self) -> dict[str, np.ndarray]:
        """Everything that a checkpoint needs, by name, first axis the shard's classes. In host memory these are views, not
        copies: they change with the next update."""
        momenta = {momentum_of(name): momentum for name, momentum in self._momenta.items()}
        return {name: self._look(store) for name, store in {**self._values, **momenta}.items()}

    def load_rows(self, start: int, rows: dict[str, np.ndarray]) -> None:
        """Take over `rows`, cut from what `state()` of any kind of bank gave on any split of the classes; they go to
        [start, start + len)."""
        for name in self._values:
            if len(rows[name]):
                self._put(self._values[name], start, float32_of(rows[name]))
                self._put(self._momenta[name], start, float32_of(rows[momentum_of(name)]))


class DeviceBank(Bank):
    """Rows on the device that Paddle computes on; without sampling they are used in place."""

    def select(self, index_K):
        super().select(index_K)
        self._index_K = None if index_K is None else tensor_of(index_K)

    def _keep(self, rows):
        return paddle.to_tensor(rows)

    def _zeros_like(self, store):
        return paddle.zeros_like(store)

    def _read(self, store, start, stop):
        return store[start:stop] if self._index_K is None else paddle.gather(store, self._index_K[start:stop])

    def _pick(self, store, number_P):
        return paddle.gather(
            store, number_P if self._index_K is None else paddle.gather(self._index_K, number_P)
        )

    def host_rows(self, name):
        store = self._values[name]
        return (store, self._chosen) if store.place.is_cpu_place() else None

    def _move(self, name, start, stop, grad, lr, decay):
        stores = self._values[name], self._momenta[name]
        if kernels.library() and grad.place.is_cpu_place():
            row_kernels.momentum(*stores, self._chosen, grad, lr, self._mu, decay)
            return
        value, momentum = (self._read(store, start, stop) for store in stores)
        rate = paddle.full([], lr)
        rule = ("l2_decay", decay) if decay else ("", 0.0)
        _C_ops.momentum_(value, grad, momentum, rate, None, self._mu, False, *rule, False, 1.0)
        if self._index_K is not None:
            for store, moved in zip(stores, (value, momentum)):
                paddle.scatter_(store, self._index_K[start:stop], moved)

    def _put(self, store, start, rows):
        paddle.assign(paddle.to_tensor(rows), output=store[start : start + len(rows)])

    def _look(self, store):
        return host_view(store)


class HostBank(Bank):
    """Rows in host memory, moved by the CPU; the device sees those of the block that it works on."""

    def _keep(self, rows):
        return rows

    def _zeros_like(self, store):
        return np.zeros_like(store)

    def _read(self, store, start, stop):
        if self._chosen is None:
            return paddle.to_tensor(store[start:stop])
        return self._fetch(store, self._chosen[start:stop])

    def _pick(self, store, number_P):
        number_P = number_P.numpy()
        return self._fetch(store, number_P if self._chosen is None else self._chosen[number_P])

    def _fetch(self, store, index_K: np.ndarray) -> paddle.Tensor:
        fetched = np.empty((len(index_K), *store.shape[1:]), np.float32)
        row_kernels.gather(store, index_K, fetched)
        return tensor_of(fetched)

    def host_rows(self, name):
        return self._values[name], self._chosen

    def _move(self, name, start, stop, grad, lr, decay):
        stores, chosen = (self._values[name], self._momenta[name]), self._of_shard(start, stop)
        if self._chosen is None:
            stores, chosen = [store[chosen] for store in stores], None
        row_kernels.momentum(*stores, chosen, host_view(grad), lr, self._mu, decay)

    def _put(self, store, start, rows):
        store[start : start + len(rows)] = rows

    def _look(self, store):
        return store


BANKS = {"device": DeviceBank, "host": HostBank}


def momentum_of(name: str) -> str:
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


def host_view(tensor: paddle.Tensor) -> np.ndarray:
    """A CPU tensor's memory as numpy, of any other a copy. Kernels may write into the view; with numpy 1 Python may not."""
    return (
        np.from_dlpack(_Exporter(tensor)) if tensor.size and tensor.place.is_cpu_place() else tensor.numpy()
    )
