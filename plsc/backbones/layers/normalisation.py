"""Compute batch normalisation together with what follows it: a residual sum, and ReLU or PReLU.

    y = active((x - mean) / sqrt(variance + epsilon) * weight + bias + skip)

Each takes one or two passes over memory if it runs alone, in most cases on one thread. Together they
take two passes over the input forward and two backward, in compiled kernels (plsc/native/layers). The source
is Ioffe & Szegedy, "Batch Normalization" (2015). The running statistics are Paddle's, with the biased
variance.
"""

import math

import paddle
from paddle import nn
from paddle.autograd import PyLayer

from plsc.backbones.layers.layout import address, by_cpu_kernels, dense, number, run
from plsc.distributed.paddle_internals import empty, view
from plsc.native import library
from plsc.native.onednn import BFLOAT16

_NONE, _RELU, _PRELU = range(3)  # the numbers that norm.cpp uses


def normalise(
    norm: nn.Layer, x: paddle.Tensor, active: nn.Layer | None = None, skip: paddle.Tensor | None = None
) -> paddle.Tensor:
    """Run a batch norm layer on x, add `skip`, and run an activation layer.

    Args:
        norm: batch norm over channels. It uses the batch's statistics in training, else the running ones.
        x: pictures in the layers' layout (see plsc.backbones.layers.layout), or [N, C].
        active: nn.ReLU, nn.PReLU or None.
        skip: tensor shaped like x, or None. It must be None with nn.PReLU, since the kernel takes the
            activation input's sign from y.
    """
    if by_cpu_kernels(x):
        slope = active._weight if isinstance(active, nn.PReLU) else None
        kind = _NONE if active is None else _RELU if slope is None else _PRELU
        return run(_Normalise, x, skip, norm.weight, norm.bias, slope, norm, kind)
    y = norm(x) if skip is None else norm(x) + skip
    return y if active is None else active(y)


def normalise_beside(norm: nn.Layer, x: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Run a batch norm layer on x like `normalise`, and also return x for its other user, such as a residual
    sum.

    The backward pass adds x's two gradients in the norm's own loop. This saves a pass over memory.
    """
    if by_cpu_kernels(x):
        return run(_Normalise, x, None, norm.weight, norm.bias, None, norm, _NONE, True)
    return normalise(norm, x), x


class _Normalise(PyLayer):
    """Runs the kernels' forward and backward passes.

    skip, weight, bias and slope (PReLU's) may be None. If `passes` is True, x is a second result.
    """

    @staticmethod
    def forward(ctx, x, skip, weight, bias, slope, norm, kind, passes=False):
        ctx.wanted = [not each.stop_gradient for each in (x, skip, weight, bias, slope) if each is not None]
        x = dense(x)
        skip = None if skip is None else dense(skip)
        ctx.kind = kind
        ctx.training = norm.training
        y = empty(x.shape, x.dtype)
        kept = empty([2, x.shape[-1]])  # each channel's mean and 1 / deviation
        like_x = x.shape, x.dtype
        library().plsc_norm_forward(
            _is_half(x),
            address(x, *like_x),
            _address(skip, *like_x),
            *_channels(x, weight, bias, slope),
            kind,
            math.prod(x.shape[:-1]),
            x.shape[-1],
            norm.training,
            norm._epsilon,
            norm._momentum,
            address(norm._mean, x.shape[-1:]),
            address(norm._variance, x.shape[-1:]),
            address(kept, [2, x.shape[-1]]),
            address(y, *like_x),
        )
        ctx.has_skip = skip is not None
        ctx.parameters = (weight, bias, slope)
        # After a sum, the kernel needs the result's sign. A detached y: y itself would refer to this context,
        # which would refer to y, and neither would be freed.
        ctx.save_for_backward(x, kept, *([y.detach()] if ctx.has_skip and kind != _NONE else []))
        # A view of x: Paddle would treat x itself as a result that is computed in place.
        return (y, view(x)) if passes else y

    @staticmethod
    def backward(ctx, dy, more=None):
        dy = dense(dy)
        more = None if more is None else dense(more)
        x, kept, *outputs = ctx.saved_tensor()
        y = outputs[0] if outputs else None
        weight, bias, slope = ctx.parameters
        dskip = dy if y is None else empty(x.shape, x.dtype)
        dx = empty(x.shape, x.dtype) if ctx.wanted[0] else None
        channels = [x.shape[-1]]
        like_x = x.shape, x.dtype
        dweight = empty(channels)
        dbias = empty(channels)
        dslope = None if slope is None else empty(slope.shape)
        library().plsc_norm_backward(
            _is_half(x),
            address(dy, *like_x),
            address(x, *like_x),
            _address(y, *like_x),
            _address(more, *like_x),
            *_channels(x, weight, bias, slope),
            ctx.kind,
            math.prod(x.shape[:-1]),
            x.shape[-1],
            ctx.training,
            address(kept, [2, *channels]),
            None if y is None else address(dskip, *like_x),
            address(dweight, channels),
            address(dbias, channels),
            None if slope is None else address(dslope, slope.shape),
            _address(dx, *like_x),
        )
        grads = [dx, *([dskip] if ctx.has_skip else [])]
        for grad, parameter in zip((dweight, dbias, dslope), ctx.parameters):
            grads += [] if parameter is None else [grad]
        return tuple(grad if wanted else None for grad, wanted in zip(grads, ctx.wanted))


def _channels(x, weight, bias, slope) -> tuple:
    """Return the kernels' arguments for the parameters: three addresses, and the step between two slopes."""
    width = x.shape[-1:]
    one_for_all = slope is None or slope.shape == [1]
    of_slope = _address(slope, [1] if one_for_all else width)
    return _address(weight, width), _address(bias, width), of_slope, 0 if one_for_all else 1


def _is_half(x: paddle.Tensor) -> bool:
    return number(x) == BFLOAT16


def _address(tensor: paddle.Tensor | None, shape: list[int], dtype=paddle.float32) -> int | None:
    return None if tensor is None else address(tensor, shape, dtype)
