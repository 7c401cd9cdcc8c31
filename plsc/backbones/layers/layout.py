"""Decide how a layer computes, and in which layout its pictures are.

A layer in this package runs either CPU kernels, which are oneDNN's operations and plsc's compiled kernels, or
Paddle's operators. It asks `by_cpu_kernels` for its input. `Dropout` does not ask, and always runs Paddle's
operators. So do Paddle's own layers in a network, such as nn.Linear after `leave`. For a batch norm layer,
`normalise` asks.

With CPU kernels, pictures between layers are [N, H, W, C]. With Paddle's operators they are [N, C, H, W]. A
network calls `enter` on its images, and `leave` on its last picture layer's output. The answer of
`by_cpu_kernels` depends on the tensor and the process alone, so a layer that is recomputed in the backward
pass gets the same answer.
"""

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from types import SimpleNamespace

import paddle
from paddle.autograd import PyLayer

from plsc import native as kernels
from plsc.distributed.paddle_internals import empty
from plsc.native import onednn

_NUMBERS = {paddle.float32: onednn.FLOAT32, paddle.bfloat16: onednn.BFLOAT16}
_entered: ContextVar[paddle.dtype] = ContextVar("entered", default=paddle.float32)


@contextlib.contextmanager
def in_bfloat16() -> Iterator[None]:
    """Make oneDNN's layers compute in bfloat16 for the images that enter a network inside the block.

    Feature maps and tokens are bfloat16 between `enter` and `leave`. Parameters, their gradients and
    statistics are float32.
    """
    token = _entered.set(paddle.bfloat16)
    try:
        yield
    finally:
        _entered.reset(token)


def by_cpu_kernels(x: paddle.Tensor) -> bool:
    """Return whether layers compute x with oneDNN and plsc's compiled kernels, and not with Paddle's
    operators.

    They do if x is float32 or bfloat16 on a CPU, nothing is traced or exported, and both oneDNN and the
    compiled kernels are available (PLSC_KERNELS=0 turns them off).
    """
    return (
        paddle.in_dynamic_mode()
        and x.dtype in _NUMBERS
        and x.place.is_cpu_place()
        and onednn.library() is not None
        and kernels.library() is not None
    )


def enter(images_BCHW: paddle.Tensor) -> paddle.Tensor:
    """Convert float32 images [B, C, H, W] into the following layers' layout and dtype."""
    return run(_Turn, images_BCHW, True, _entered.get()) if by_cpu_kernels(images_BCHW) else images_BCHW


def leave(x: paddle.Tensor) -> paddle.Tensor:
    """Convert pictures from the layers' layout back to [N, C, H, W], and any layer's tensor to float32."""
    if not by_cpu_kernels(x):
        return x
    if x.ndim == 4:
        return run(_Turn, x, False, paddle.float32)
    return x if x.dtype == paddle.float32 else x.astype("float32")


def number(x: paddle.Tensor) -> int:
    """Return oneDNN's number for the tensor's dtype, float32 or bfloat16."""
    return _NUMBERS[x.dtype]


def address(x: paddle.Tensor, shape: Sequence[int], dtype: paddle.dtype = paddle.float32) -> int:
    """Return a tensor's address for a kernel, after asserting that it is what the kernel takes it for: a
    kernel reads and writes at an address whatever lies there."""
    assert x.shape == list(shape), (x.shape, shape)
    assert x.dtype is dtype or x.dtype == dtype, (x.dtype, dtype)  # == is slow, and needed on Paddle 2.6 only
    assert x.is_contiguous() or x.size == 0
    assert x.place.is_cpu_place()
    return x.data_ptr()


# Paddle 2.6 keeps a network's translated code after an export, and also calls it in eager mode.
@paddle.jit.not_to_static
def run(layer: type[PyLayer], *inputs):
    """Apply a layer. If no backward pass can follow, run its forward pass alone, which saves nothing."""
    tensors = [x for x in inputs if isinstance(x, paddle.Tensor)]
    if paddle.is_grad_enabled() and not all(x.stop_gradient for x in tensors):
        return layer.apply(*inputs)
    return layer.forward(SimpleNamespace(save_for_backward=lambda *tensors: None), *inputs)


@onednn.kept
def _turn(shape: tuple[int, ...], last: bool, source: int, target: int) -> onednn.Operation:
    """Make the operation that copies pictures between layouts, and from one dtype to another.

    Args:
        shape: (N, C, H, W), in both directions.
        last: True to copy to [N, H, W, C], False to copy to [N, C, H, W].
        source, target: oneDNN's numbers for the dtypes.
    """
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
    turn(address(dense(x), x.shape, x.dtype), address(out, shape, dtype))
    return out


class _Turn(PyLayer):
    """Converts pictures to [N, H, W, C] if `last`, else to [N, C, H, W], and to a dtype."""

    @staticmethod
    def forward(ctx, x, last, dtype):
        ctx.back = not last, x.dtype
        return _turned(x, last, dtype)

    @staticmethod
    def backward(ctx, grad):
        return _turned(grad, *ctx.back)


def dense(x: paddle.Tensor) -> paddle.Tensor:
    """Return the tensor if it is contiguous, else a contiguous copy."""
    return x if x.is_contiguous() else x.contiguous()
