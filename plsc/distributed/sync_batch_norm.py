"""Synchronise batch normalisation: mean and variance over the samples of all ranks, forward and backward.

    y = (x - mean) / sqrt(variance + epsilon) * weight + bias        mean, variance: of all ranks' samples

Paddle's own SyncBatchNorm works on GPUs only. Each rank computes its mean and, centred by it, its sum of
squares; these are combined over the ranks in float64 (Chan, Golub & LeVeque 1979), so that no difference of two
large float32 sums is taken. A rank counts by its number of samples. Collectives: one all_reduce of 2 C + 1
numbers forward, one of 2 C numbers backward.

Try it: `pytest tests/distributed/test_sync_batch_norm.py`.
"""

from __future__ import annotations

import paddle
from paddle import nn
from paddle.autograd import PyLayer
from paddle.nn.layer.norm import _BatchNormBase

from plsc.distributed.collectives import all_reduce, world_size
from plsc.errors import UserError

_CONVERTED = (nn.BatchNorm1D, nn.BatchNorm2D, nn.BatchNorm3D, nn.SyncBatchNorm)
_CHANNELS_LAST = ("NLC", "NHWC", "NDHWC")


class SyncBatchNorm(_BatchNormBase):
    """Takes the place of a batch normalisation layer, with its parameters, running statistics and constants.

    In evaluation mode, and with use_global_stats, it normalises by the running statistics, without a
    collective. In training every rank must call it equally often, in the same order. The running variance
    is updated by the biased variance, as Paddle's layers update it on a CPU.

    Args:
        layer: the layer to replace, which must not be used any more.
    """

    def __init__(self, layer: _BatchNormBase):
        vars(self).update(vars(layer))  # parameters, statistics, constants and hooks: all that it has

    def _check_input_dim(self, input: paddle.Tensor) -> None:
        """Accept any number of axes: `forward` is written for all of them."""

    def _check_data_format(self, input: paddle.Tensor) -> None:
        """Accept the layer's own format."""

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Normalise x, [B, C], [B, C, ...] or [B, ..., C] by the layer's data format; the dtype stays."""
        if not self.training or self._use_global_stats:
            return super().forward(x)
        channel = x.ndim - 1 if self._data_format in _CHANNELS_LAST else 1
        shape = [self._num_features if axis == channel else 1 for axis in range(x.ndim)]
        wide = x if x.dtype in (paddle.float32, paddle.float64) else x.astype("float32")
        y, mean_C, variance_C = _Normalise.apply(wide, channel, self._epsilon)
        self._average(self._mean, mean_C)
        self._average(self._variance, variance_C)
        if self.weight is not None:
            y = y * self.weight.reshape(shape)
        if self.bias is not None:
            y = y + self.bias.reshape(shape)
        return y if y.dtype == x.dtype else y.astype(x.dtype)

    @paddle.no_grad()
    def _average(self, running_C: paddle.Tensor, of_batch_C: paddle.Tensor) -> None:
        mixed = running_C * self._momentum + of_batch_C * (1 - self._momentum)
        paddle.assign(mixed, output=running_C)


class _Normalise(PyLayer):
    """Normalises x (float32 or float64) by mean and variance over all axes but `channel` and all ranks -> y, mean, variance.

    With m samples in all, y = (x - mean) * r and r = 1 / sqrt(variance + epsilon), the gradient is
    dx = r * (dy - sum(dy) / m - y * sum(dy * y) / m), sums over the samples of all ranks.
    """

    @staticmethod
    def forward(ctx, x, channel, epsilon):
        axes = [axis for axis in range(x.ndim) if axis != channel]
        count = x.size // x.shape[channel]
        mean = x.sum(axes, keepdim=True) / max(count, 1)
        square_C = (x - mean).square().sum(axes).astype("float64")
        mean_C = mean.flatten().astype("float64")
        sums = [mean_C * count, square_C + mean_C * mean_C * count, paddle.full([1], count, "float64")]
        mean_C, square_C, total = all_reduce(paddle.concat(sums)).split([x.shape[channel]] * 2 + [1])
        mean_C = mean_C / total
        variance_C = paddle.clip(square_C / total - mean_C * mean_C, min=0)
        scale = (variance_C + epsilon).rsqrt().astype(x.dtype).reshape(mean.shape)
        y = (x - mean_C.astype(x.dtype).reshape(mean.shape)) * scale
        ctx.save_for_backward(y, scale, total)
        ctx.axes = axes
        statistics = mean_C.astype(x.dtype), variance_C.astype(x.dtype)
        ctx.mark_non_differentiable(*statistics)
        return y, *statistics

    @staticmethod
    def backward(ctx, dy, *_of_statistics):
        y, scale, total = ctx.saved_tensor()
        sums = [dy.sum(ctx.axes).astype("float64"), (dy * y).sum(ctx.axes).astype("float64")]
        means = (all_reduce(paddle.stack(sums)) / total).astype(dy.dtype)
        mean_dy, mean_dy_y = (means[row].reshape(scale.shape) for row in range(2))
        return scale * (dy - mean_dy - y * mean_dy_y)


def synchronise(backbone: nn.Layer) -> nn.Layer:
    """Replace the batch normalisation layers of `backbone` by synchronised ones; return the backbone, changed.

    Names of parameters and running statistics stay, so checkpoints and exports are the same. On one rank
    nothing is replaced. A call of paddle.nn.functional.batch_norm in the network's own code is not a layer,
    and stays as it is. A class of one's own derived from Paddle's layers is replaced if its attribute
    `only_normalises` is True.

    Raises UserError if there is no such layer, or one that is not known how to synchronise.
    """
    norms = {}
    for name, layer in backbone.named_sublayers(include_self=True):
        if type(layer) in _CONVERTED or getattr(layer, "only_normalises", False):
            norms[name] = layer
        elif isinstance(layer, (_BatchNormBase, nn.BatchNorm)) and not isinstance(layer, SyncBatchNorm):
            raise UserError(
                f"Model.sync_batchnorm: '{name}' is a {type(layer).__name__}, which cannot be synchronised; use "
                "paddle.nn.BatchNorm1D, BatchNorm2D or BatchNorm3D, or set it to false"
            )
    if not norms:
        raise UserError(
            f"Model.sync_batchnorm: {type(backbone).__name__} has no batch normalisation layer; set it to false"
        )
    if world_size() == 1:
        return backbone
    made = {id(layer): SyncBatchNorm(layer) for layer in norms.values()}
    if id(backbone) in made:
        return made[id(backbone)]
    for parent in backbone.sublayers(include_self=True):
        for name, layer in list(parent._sub_layers.items()):
            if id(layer) in made:
                setattr(parent, name, made[id(layer)])
    return backbone
