"""Draw what is random in a forward pass by its address: (seed, step, layer, number of the sample in the
step).

A generator's numbers depend on all that was drawn before. These do not, so a step gives the same masks
whether its samples go through the network in one batch or in several, on one rank or on many, and again when
a layer is recomputed in the backward pass. The numbers of sample n in layer l at place j are

    a[n] * b[l] * x[j] + c[n] * d[l]      mod 2**64

with random 64-bit numbers a and c of (seed, step, n), odd ones b and d of l, and x of j (multilinear hashing:
Dietzfelbinger et al., "A reliable randomized algorithm for the closest-pair problem", 1997): three operations
on int64 a number, on the tensor's device, and the same on every device. a to d and x are drawn by Philox.

    addresses = Addresses(net, seed=0)
    with addresses.of(step=7, first=32, count=16):  # samples 32 to 47 of the step
        net(images)

Outside of such a block the layers draw from Paddle's generator, as Paddle's own do.
"""

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar

import numpy as np
import paddle
from paddle import nn

from plsc.distributed.device import to_device

_LAYER = 1  # keys of Philox beside a layer's number, and for the places
_PLACE = 2


# Of a forward pass: random numbers int64 [B, 2] of its samples, on the device, and the numbers of the layers.
_samples: ContextVar[tuple[paddle.Tensor, dict[nn.Layer, int]] | None] = ContextVar("samples", default=None)


class Addresses:
    """Gives the layers of a network their numbers, and a forward pass the addresses of its samples.

    Args:
        net: with layers of this module.
        seed: of the run, at least 0.
    """

    def __init__(self, net: nn.Layer, seed: int):
        self._layers = {layer: number for number, layer in enumerate(net.sublayers(include_self=True))}
        self._seed = seed

    @contextlib.contextmanager
    def of(self, step: int, first: int, count: int) -> Iterator[None]:
        """Run forward passes inside the block, or backward passes that recompute them, of the samples
        `first` to `first + count - 1` of a step."""
        philox = np.random.Philox(key=[self._seed, step])
        philox.advance(first)
        keys = philox.random_raw(4 * count).reshape(count, 4)[:, :2]
        token = _samples.set((_tensor(keys), self._layers))
        try:
            yield
        finally:
            _samples.reset(token)


class Dropout(nn.Dropout):
    """Drops numbers in training with probability `p`, and divides the others by 1 - p.

    axis: None drops each number, 0 all of a sample or nothing of it.
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
    """Draw random numbers [count, size] for the samples of a forward pass in `layer`, to be sorted."""
    if _samples.get() is None:
        return paddle.rand([count, size])
    return _numbers(layer, size)


def _numbers(layer: nn.Layer, size: int) -> paddle.Tensor:
    """Compute the random numbers int64 [B, size] of a layer."""
    keys_B2, layers = _samples.get()
    device = paddle.get_device()
    keys_B2 = keys_B2 * _of_layer(layers[layer], device)
    return keys_B2[:, :1] * _of_places(size, device) + keys_B2[:, 1:]


# On the device, so that a step copies nothing to it but the samples' numbers.
@functools.cache
def _of_layer(number: int, device: str) -> paddle.Tensor:
    return _tensor(np.random.Philox(key=[number, _LAYER]).random_raw(2) | 1)


@functools.lru_cache(maxsize=64)
def _of_places(size: int, device: str) -> paddle.Tensor:
    return _tensor(np.random.Philox(key=[0, _PLACE]).random_raw(size) | 1)


@functools.cache
def _constant(value: int, device: str) -> paddle.Tensor:
    return to_device(np.array(min(value, 2**63 - 1), np.int64))


def _tensor(numbers: np.ndarray) -> paddle.Tensor:
    return to_device(np.ascontiguousarray(numbers, np.uint64).view(np.int64))
