"""Draw random numbers by address in a forward pass. An address is (seed, step, layer, sample).

A random generator's numbers depend on everything drawn before. Addressed numbers do not. A step
therefore gives the same masks if its samples pass through the network in one batch or in several, on one rank
or on many, and again if a layer is recomputed in the backward pass. Sample n gets this number in layer l at
position j:

    a[n] * b[l] * x[j] + c[n] * d[l]      mod 2**64

a and c are random 64-bit functions of (seed, step, n), b and d are odd functions of l, and x is an odd
function of j. This is multilinear hashing (Dietzfelbinger et al., "A reliable randomized algorithm for the
closest-pair problem", 1997). It takes three int64 operations per number, runs on the tensor's device, and
gives the same numbers on every device. Philox draws a, b, c, d and x.

    addresses = Addresses(net, seed=0)
    with addresses.use(step=7, first=32, count=16):  # samples 32 to 47 in the step
        net(images)

Outside such a block the layers draw from Paddle's generator, as Paddle's own layers do.
"""

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar

import numpy as np
import paddle
from paddle import nn

from plsc.distributed.device import to_device

_LAYER = 1  # Philox's second key word for layers
_POSITION = 2  # Philox's second key word for positions


# The current forward pass: random numbers int64 [B, 2] of its samples on the device, and each layer's number.
_samples: ContextVar[tuple[paddle.Tensor, dict[nn.Layer, int]] | None] = ContextVar("samples", default=None)


class Addresses:
    """Numbers a network's layers, and gives a forward pass its samples' addresses.

    Args:
        net: network that contains layers from this module.
        seed: the run's seed, at least 0.
    """

    def __init__(self, net: nn.Layer, seed: int):
        self._layers = {layer: number for number, layer in enumerate(net.sublayers(include_self=True))}
        self._seed = seed

    @contextlib.contextmanager
    def use(self, step: int, first: int, count: int) -> Iterator[None]:
        """Inside the block, address a step's samples `first` to `first + count - 1`.

        The block may run forward passes, and backward passes that recompute them.
        """
        philox = np.random.Philox(key=[self._seed, step])
        philox.advance(first)
        keys = philox.random_raw(4 * count).reshape(count, 4)[:, :2]
        token = _samples.set((_tensor(keys), self._layers))
        try:
            yield
        finally:
            _samples.reset(token)


class Dropout(nn.Dropout):
    """Sets numbers to 0 in training with probability `p`, and divides the others by 1 - p.

    Args:
        p: probability, 0 to 1.
        axis: None to decide for each number, or 0 to decide once for a sample's numbers.
    """

    def __init__(self, p: float = 0.5, axis: int | None = None):
        super().__init__(p, axis=axis)

    def forward(self, x):
        if not self.training or self.p in (0, 1) or _samples.get() is None:
            return nn.Dropout.forward(self, x)  # no super(): Paddle 2.6 cannot trace it
        if x.dtype == paddle.bfloat16 and x.place.is_cpu_place():  # for which Paddle has no such operators
            return self.forward(x.astype("float32")).astype("bfloat16")
        shape = [x.shape[0], *([1] * (x.ndim - 1) if self.axis == 0 else x.shape[1:])]
        numbers = _numbers(self, int(np.prod(shape[1:]))).reshape(shape)
        keeps = numbers >= _constant(round(self.p * 2**64) - 2**63, paddle.get_device())
        return paddle.where(keeps, x * (1 / (1 - self.p)), paddle.zeros([1], x.dtype))


def random_scores(layer: nn.Layer, count: int, size: int) -> paddle.Tensor:
    """Draw random numbers [count, size] for a forward pass's samples. Only their order has a meaning."""
    if _samples.get() is None:
        return paddle.rand([count, size])
    return _numbers(layer, size)


def _numbers(layer: nn.Layer, size: int) -> paddle.Tensor:
    """Compute a layer's random numbers, int64 [B, size]."""
    keys_B2, layers = _samples.get()
    device = paddle.get_device()
    keys_B2 = keys_B2 * _layer_numbers(layers[layer], device)
    return keys_B2[:, :1] * _position_numbers(size, device) + keys_B2[:, 1:]


# Cached on the device, so that a step copies only the samples' numbers to it.
@functools.cache
def _layer_numbers(number: int, device: str) -> paddle.Tensor:
    return _tensor(np.random.Philox(key=[number, _LAYER]).random_raw(2) | 1)


@functools.lru_cache(maxsize=64)
def _position_numbers(size: int, device: str) -> paddle.Tensor:
    return _tensor(np.random.Philox(key=[0, _POSITION]).random_raw(size) | 1)


@functools.cache
def _constant(value: int, device: str) -> paddle.Tensor:
    return to_device(np.array(min(value, 2**63 - 1), np.int64))


def _tensor(numbers: np.ndarray) -> paddle.Tensor:
    return to_device(np.ascontiguousarray(numbers, np.uint64).view(np.int64))
