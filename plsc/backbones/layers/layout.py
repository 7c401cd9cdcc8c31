"""Decide how a layer computes, and in which layout its pictures lie.

By oneDNN and compiled kernels, pictures between layers are [N, H, W, C]; otherwise, by Paddle's operators,
[N, C, H, W]. A network turns its images by `enter` at its start, and what comes out of its last layer for
pictures by `leave`; in between every layer asks `by_onednn`. That depends on the tensor and the process alone, so
a layer that is computed again in the backward pass decides as before.
"""

from __future__ import annotations

import paddle
from paddle.autograd import PyLayer

from plsc import native as kernels
from plsc.native import onednn

_CPU = paddle.CPUPlace()


def by_onednn(x: paddle.Tensor) -> bool:
    """Say whether layers compute x by oneDNN: float32 on a CPU, nothing traced or exported, kernels there
    (PLSC_KERNELS=0: none)."""
    return (
        paddle.in_dynamic_mode()
        and x.dtype == paddle.float32
        and x.place.is_cpu_place()
        and onednn.library() is not None
        and kernels.library() is not None
    )


def enter(images_BCHW: paddle.Tensor) -> paddle.Tensor:
    """Turn images into the layout of the layers that follow."""
    return run(_Turned, images_BCHW, True) if by_onednn(images_BCHW) else images_BCHW


def leave(x: paddle.Tensor) -> paddle.Tensor:
    """Turn pictures from the layout of layers back to [N, C, H, W]."""
    return run(_Turned, x, False) if by_onednn(x) else x


def empty(shape: list[int]) -> paddle.Tensor:
    """Make a float32 tensor on the CPU with whatever numbers are there; paddle.empty takes ten times as long."""
    return paddle._C_ops.empty(shape, paddle.float32, _CPU)


@paddle.jit.not_to_static  # Paddle 2.6 keeps a network's translated code after an export, and calls it in eager mode, too
def run(layer: type[PyLayer], *inputs):
    """Apply a layer; where no backward pass will come, run its forward pass alone, which keeps nothing."""
    tensors = [x for x in inputs if isinstance(x, paddle.Tensor)]
    if paddle.is_grad_enabled() and not all(x.stop_gradient for x in tensors):
        return layer.apply(*inputs)
    return layer.forward(_KeepsNothing(), *inputs)


class _KeepsNothing:
    """Stands for the context of a layer that no backward pass follows."""

    def save_for_backward(self, *tensors) -> None:
        """Forget the tensors."""


@onednn.kept
def _turn(samples: int, channels: int, height: int, width: int, last: bool) -> onednn.Operation:
    first = onednn.describe((samples, channels, height, width))
    other = onednn.channels_last((samples, height, width, channels))
    return onednn.Operation("reorder", [first, other] if last else [other, first], [onednn.SRC, onednn.DST])


def _turned(x: paddle.Tensor, last: bool) -> paddle.Tensor:
    """Turn [N, C, H, W] to [N, H, W, C] if `last`, else back."""
    if last:
        samples, channels, height, width = x.shape
    else:
        samples, height, width, channels = x.shape
    out = empty([samples, height, width, channels] if last else [samples, channels, height, width])
    _turn(samples, channels, height, width, last)(dense(x).data_ptr(), out.data_ptr())
    return out


class _Turned(PyLayer):
    @staticmethod
    def forward(ctx, x, last):
        ctx.last = last
        return _turned(x, last)

    @staticmethod
    def backward(ctx, grad):
        return _turned(grad, not ctx.last)


def dense(x: paddle.Tensor) -> paddle.Tensor:
    """Return the tensor, in C order in memory."""
    return x if x.is_contiguous() else x.contiguous()
