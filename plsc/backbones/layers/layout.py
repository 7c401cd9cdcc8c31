"""Decide how a layer computes, and in which layout its pictures lie.

By oneDNN and compiled kernels, pictures between layers are [N, H, W, C]; otherwise, by Paddle's operators,
[N, C, H, W]. A network turns its images by `enter` at its start, and what comes out of its last layer for
pictures by `leave`; in between every layer asks `by_onednn`. That depends on the tensor and the process
alone, so a layer that is computed again in the backward pass decides as before.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from types import SimpleNamespace

import paddle
from paddle.autograd import PyLayer

from plsc import native as kernels
from plsc.native import onednn

_CPU = paddle.CPUPlace()
_NUMBERS = {paddle.float32: onednn.FLOAT32, paddle.bfloat16: onednn.BFLOAT16}
_entered: ContextVar[paddle.dtype] = ContextVar("entered", default=paddle.float32)


@contextlib.contextmanager
def in_bfloat16() -> Iterator[None]:
    """Let layers by oneDNN compute in bfloat16 what enters a network inside the block.

    Maps and tokens are bfloat16 from `enter` to `leave`; parameters, their gradients and statistics are
    float32.
    """
    token = _entered.set(paddle.bfloat16)
    try:
        yield
    finally:
        _entered.reset(token)


def by_onednn(x: paddle.Tensor) -> bool:
    """Say whether layers compute x by oneDNN: float32 or bfloat16 on a CPU, nothing traced or exported,
    kernels there (PLSC_KERNELS=0: none)."""
    return (
        paddle.in_dynamic_mode()
        and x.dtype in _NUMBERS
        and x.place.is_cpu_place()
        and onednn.library() is not None
        and kernels.library() is not None
    )


def enter(images_BCHW: paddle.Tensor) -> paddle.Tensor:
    """Turn float32 images into the layout of the layers that follow, and into their dtype."""
    return run(_Turn, images_BCHW, True, _entered.get()) if by_onednn(images_BCHW) else images_BCHW


def leave(x: paddle.Tensor) -> paddle.Tensor:
    """Turn pictures from the layout of layers back to [N, C, H, W], and any tensor of theirs to float32."""
    if not by_onednn(x):
        return x
    if x.ndim == 4:
        return run(_Turn, x, False, paddle.float32)
    return x if x.dtype == paddle.float32 else x.astype("float32")


def number(x: paddle.Tensor) -> int:
    """Return oneDNN's number of the dtype of a tensor that it computes."""
    return _NUMBERS[x.dtype]


def empty(shape: list[int], dtype: paddle.dtype = paddle.float32) -> paddle.Tensor:
    """Make a tensor on the CPU with whatever numbers are there; paddle.empty takes ten times as long."""
    return paddle._C_ops.empty(shape, dtype, _CPU)


# Paddle 2.6 keeps a network's translated code after an export, and calls it in eager mode, too
@paddle.jit.not_to_static
def run(layer: type[PyLayer], *inputs):
    """Apply a layer; where no backward pass will come, run its forward pass alone, which keeps nothing."""
    tensors = [x for x in inputs if isinstance(x, paddle.Tensor)]
    if paddle.is_grad_enabled() and not all(x.stop_gradient for x in tensors):
        return layer.apply(*inputs)
    return layer.forward(SimpleNamespace(save_for_backward=lambda *tensors: None), *inputs)


@onednn.kept
def _turn(shape: tuple[int, ...], last: bool, source: int, target: int) -> onednn.Operation:
    """Make the copy of [N, C, H, W] `shape` to [N, H, W, C] if `last`, else back, from one dtype to
    another."""
    samples, channels, height, width = shape
    turned = (samples, height, width, channels)
    if last:
        arrays = [onednn.describe(shape, dtype=source), onednn.channels_last(turned, target)]
    else:
        arrays = [onednn.channels_last(turned, source), onednn.describe(shape, dtype=target)]
    return onednn.Operation("reorder", arrays, [onednn.SRC, onednn.DST])


def _turned(x: paddle.Tensor, last: bool, dtype: paddle.dtype) -> paddle.Tensor:
    samples, *sides = x.shape
    shape = [samples, *sides[1:], sides[0]] if last else [samples, sides[2], *sides[:2]]
    out = empty(shape, dtype)
    turn = _turn(tuple(x.shape if last else shape), last, number(x), number(out))
    turn(dense(x).data_ptr(), out.data_ptr())
    return out


class _Turn(PyLayer):
    """Turns pictures to [N, H, W, C] if `last`, else to [N, C, H, W], of a dtype."""

    @staticmethod
    def forward(ctx, x, last, dtype):
        ctx.back = not last, x.dtype
        return _turned(x, last, dtype)

    @staticmethod
    def backward(ctx, grad):
        return _turned(grad, *ctx.back)


def dense(x: paddle.Tensor) -> paddle.Tensor:
    """Return the tensor, in C order in memory."""
    return x if x.is_contiguous() else x.contiguous()
