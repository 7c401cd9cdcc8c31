"""ReLU and average pooling, with oneDNN or with Paddle's operators."""

import math
from collections.abc import Callable
from ctypes import c_float

from paddle import nn
from paddle.autograd import PyLayer

from plsc.backbones.layers.layout import address, by_cpu_kernels, dense, number, run
from plsc.distributed.paddle_internals import empty
from plsc.native import onednn


class ReLU(nn.ReLU):
    """Replaces negative numbers by 0 in any tensor."""

    def forward(self, x):
        if by_cpu_kernels(x):
            return run(_Pair, x, x.shape, _relu)
        return nn.ReLU.forward(self, x)  # no super(): Paddle 2.6 cannot trace it


class AvgPool2D(nn.AvgPool2D):
    """Averages a picture's squares, which do not overlap. Pixels at the right and bottom that fill no square
    are ignored.

    Args:
        side: a square's side, in pixels.
    """

    def __init__(self, side: int):
        super().__init__(side, side)

    def forward(self, x):
        if not by_cpu_kernels(x):
            return nn.AvgPool2D.forward(self, x)
        samples, height, width, channels = x.shape
        shape = [samples, height // self.ksize, width // self.ksize, channels]
        return run(_Pair, x, shape, _pool, self.ksize)


@onednn.kept
def eltwise(count: int, kind: int, alpha: float, beta: float, dtype: int) -> tuple[onednn.Operation, ...]:
    """Make the forward operation on `count` numbers, and the backward one, which takes the forward result.

    Args:
        count: how many numbers.
        kind: oneDNN's number for an algorithm whose name ends in _OF_OUTPUT.
        alpha, beta: the algorithm's parameters.
        dtype: oneDNN's number for the dtype.
    """
    x = onednn.describe((count,), dtype=dtype)
    numbers = [c_float(alpha), c_float(beta)]
    forward = onednn.Operation(
        "eltwise_forward", [onednn.FORWARD_TRAINING, kind, x, x, *numbers], [onednn.SRC, onednn.DST]
    )
    backward = onednn.Operation(
        "eltwise_backward",
        [kind, x, x, x, *numbers, forward.descriptor],
        [onednn.DST, onednn.DIFF_DST, onednn.DIFF_SRC],
    )
    return forward, backward


def _relu(shape: tuple[int, ...], dtype: int) -> tuple[onednn.Operation, ...]:
    return eltwise(math.prod(shape), onednn.RELU_OF_OUTPUT, 0.0, 0.0, dtype)


@onednn.kept
def _pool(shape: tuple[int, ...], side: int, dtype: int) -> tuple[onednn.Operation, ...]:
    """Make the forward and backward operations on pictures with this shape, [N, H, W, C]."""
    samples, height, width, channels = shape
    source = onednn.channels_last(shape, dtype)
    target = onednn.channels_last((samples, height // side, width // side, channels), dtype)
    # The ignored pixels are a negative padding at the end.
    rest = onednn.pair(-(height % side), -(width % side))
    steps = [onednn.pair(side), onednn.pair(side), onednn.pair(0), onednn.pair(0), rest]
    settings = [onednn.AVERAGE_POOLING, source, target, *steps]
    forward = onednn.Operation(
        "pooling_forward", [onednn.FORWARD_TRAINING, *settings], [onednn.SRC, onednn.DST]
    )
    backward = onednn.Operation(
        "pooling_backward", [*settings, forward.descriptor], [onednn.DIFF_DST, onednn.DIFF_SRC]
    )
    return forward, backward


class _Pair(PyLayer):
    """Runs a pair of operations on one tensor.

    `make` returns the pair for the tensor's shape and `key`. The backward operation also takes the forward
    result if `make` is `_relu`.
    """

    @staticmethod
    def forward(ctx, x, shape: list[int], make: Callable, *key):
        ctx.shape = x.shape
        ctx.make = make
        ctx.key = (tuple(x.shape), *key, number(x))
        out = empty(shape, x.dtype)
        make(*ctx.key)[0](address(dense(x), x.shape, x.dtype), address(out, shape, x.dtype))
        ctx.like_out = shape, x.dtype
        ctx.save_for_backward(*([out] if make is _relu else []))
        return out

    @staticmethod
    def backward(ctx, grad):
        dx = empty(ctx.shape, grad.dtype)
        outputs = (address(array, *ctx.like_out) for array in (*ctx.saved_tensor(), dense(grad)))
        ctx.make(*ctx.key)[1](*outputs, address(dx, ctx.shape, grad.dtype))
        return dx
