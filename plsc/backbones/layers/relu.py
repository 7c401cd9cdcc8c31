"""Cut negative numbers of pictures to 0, by oneDNN or by operators of Paddle."""

from __future__ import annotations

from ctypes import c_float

from paddle import nn
from paddle.autograd import PyLayer

from plsc.backbones.layers.layout import by_onednn, dense, empty, number, run
from plsc.native import onednn


class ReLU(nn.ReLU):
    """Cuts negative numbers to 0, of tensors of any shape."""

    def forward(self, x):
        return (
            run(_Relu, x) if by_onednn(x) else nn.ReLU.forward(self, x)
        )  # no super(): Paddle 2.6 cannot trace it


@onednn.kept
def _operations(size: int, dtype: int) -> tuple[onednn.Operation, onednn.Operation]:
    """Make the operations on this many numbers, forward and backward."""
    numbers = onednn.describe((size,), dtype=dtype)
    zeros = [c_float(0), c_float(0)]
    forward = onednn.Operation(
        "eltwise_forward",
        [onednn.FORWARD_TRAINING, onednn.RELU_OF_OUTPUT, numbers, numbers, *zeros],
        [onednn.SRC, onednn.DST],
    )
    backward = onednn.Operation(
        "eltwise_backward",
        [onednn.RELU_OF_OUTPUT, numbers, numbers, numbers, *zeros, forward.descriptor],
        [onednn.DST, onednn.DIFF_DST, onednn.DIFF_SRC],
    )
    return forward, backward


class _Relu(PyLayer):
    @staticmethod
    def forward(ctx, x):
        out = empty(x.shape, x.dtype)
        _operations(x.size, number(x))[0](dense(x).data_ptr(), out.data_ptr())
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, grad):
        (out,) = ctx.saved_tensor()
        of_x = empty(grad.shape, grad.dtype)
        _operations(grad.size, number(grad))[1](out.data_ptr(), dense(grad).data_ptr(), of_x.data_ptr())
        return of_x
