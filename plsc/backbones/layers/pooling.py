"""Average parts of pictures by oneDNN, or by Paddle's operator."""

from __future__ import annotations

from paddle import nn
from paddle.autograd import PyLayer

from plsc.backbones.layers.layout import by_onednn, dense, empty, number, run
from plsc.native import onednn


class AvgPool2D(nn.AvgPool2D):
    """Averages squares of a picture that do not overlap; what is left at its right and at its bottom is left
    out.

    Args:
        side: of a square, in pixels.
    """

    def __init__(self, side: int):
        super().__init__(side, side)

    def forward(self, x):
        if by_onednn(x):
            return run(_Average, x, self.ksize)
        return nn.AvgPool2D.forward(self, x)  # no super(): Paddle 2.6 cannot trace it


@onednn.kept
def _operations(shape: tuple[int, ...], side: int, dtype: int) -> tuple[onednn.Operation, onednn.Operation]:
    """Make the operations on pictures [N, H, W, C] of this shape, forward and backward."""
    samples, height, width, channels = shape
    source = onednn.channels_last(shape, dtype)
    target = onednn.channels_last((samples, height // side, width // side, channels), dtype)
    # What is left out stands as a negative padding at the end.
    rest = onednn.pair(-(height % side), -(width % side))
    steps = [onednn.pair(side), onednn.pair(side), onednn.pair(0), onednn.pair(0), rest]
    forward = onednn.Operation(
        "pooling_forward",
        [onednn.FORWARD_TRAINING, onednn.AVERAGE_POOLING, source, target, *steps],
        [onednn.SRC, onednn.DST],
    )
    backward = onednn.Operation(
        "pooling_backward",
        [onednn.AVERAGE_POOLING, source, target, *steps, forward.descriptor],
        [onednn.DIFF_DST, onednn.DIFF_SRC],
    )
    return forward, backward


class _Average(PyLayer):
    @staticmethod
    def forward(ctx, x, side):
        samples, height, width, channels = x.shape
        ctx.key = (tuple(x.shape), side, number(x))
        out = empty([samples, height // side, width // side, channels], x.dtype)
        _operations(*ctx.key)[0](dense(x).data_ptr(), out.data_ptr())
        return out

    @staticmethod
    def backward(ctx, grad):
        of_x = empty(ctx.key[0], grad.dtype)
        _operations(*ctx.key)[1](dense(grad).data_ptr(), of_x.data_ptr())
        return of_x
