"""Synchronise batch normalisation: mean and variance over the samples of all ranks, forward and backward.

    y = (x - mean) / sqrt(variance + epsilon) * weight + bias        mean, variance: of all ranks' samples

Paddle's own SyncBatchNorm works on GPUs only. Each rank computes its mean and, centred by it, its sum of
squares; these are combined over the ranks in float64 (Chan, Golub & LeVeque 1979), so that no difference of
two large float32 sums is taken. A rank counts by its number of samples. Collectives: one all_reduce of 2 C +
1 numbers forward, one of 2 C numbers backward.

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
    collective. In training every rank must call it equally often, in the same order, with at least one
    sample. The running variance is updated by the biased variance, as Paddle's layers update it on a CPU.

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
        wide = x if x.dtype in (paddle.float32, paddle.float64) else x.astype("float32")
        y, mean_C, variance_C = _Normalise.apply(
            wide, self.weight, self.bias, self._epsilon, self._data_format in _CHANNELS_LAST
        )
        self._average(self._mean, mean_C)
        self._average(self._variance, variance_C)
        return y if y.dtype == x.dtype else y.astype(x.dtype)

    @paddle.no_grad()
    def _average(self, running_C: paddle.Tensor, of_batch_C: paddle.Tensor) -> None:
        mixed = running_C * self._momentum + of_batch_C * (1 - self._momentum)
        paddle.assign(mixed, output=running_C)


class _Normalise(PyLayer):
    """Normalises x (float32 or float64) by mean and variance over all axes but channels and all ranks, times
    weight, plus bias (either may be None) -> y, mean, variance.

    With m samples in all, z = (x - mean) * r and r = 1 / sqrt(variance + epsilon), the gradient is
    dx = weight * r * (dy - sum(dy) / m - z * sum(dy * z) / m), sums over the samples of all ranks. Those of
    weight and bias are this rank's: data parallel averages them, as of any parameter.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, epsilon, channels_last):
        count = x.size // x.shape[-1 if channels_last else 1]
        own_mean_C = _sum(x, channels_last) / count
        centred = _scale(x, own_mean_C, paddle.ones_like(own_mean_C), channels_last)
        square_C = _sum(centred * centred, channels_last).astype("float64")
        mean_C = own_mean_C.astype("float64")
        sums = [mean_C * count, square_C + mean_C * mean_C * count, paddle.full([1], count, "float64")]
        sums = all_reduce(paddle.concat(sums))
        total = sums[-1:]
        mean_C, square_C = (sums[:-1] / total).chunk(2)
        variance_C = paddle.clip(square_C - mean_C * mean_C, min=0)
        root_C = (variance_C + epsilon).rsqrt().astype(x.dtype)
        mean_C = mean_C.astype(x.dtype)
        variance_C = variance_C.astype(x.dtype)
        scale_C = root_C if weight is None else root_C * weight
        ctx.save_for_backward(x, mean_C, root_C, scale_C, total)
        ctx.channels_last = channels_last
        ctx.needed = [not tensor.stop_gradient for tensor in (x, weight, bias) if tensor is not None]
        ctx.has_weight = weight is not None
        ctx.mark_non_differentiable(mean_C, variance_C)
        return _scale(x, mean_C, scale_C, channels_last, bias), mean_C, variance_C

    @staticmethod
    def backward(ctx, dy, *_of_statistics):
        x, mean_C, root_C, scale_C, total = ctx.saved_tensor()
        last = ctx.channels_last
        z = _scale(x, mean_C, root_C, last)
        of_bias_C = _sum(dy, last)
        of_weight_C = _sum(dy * z, last)
        sums = all_reduce(paddle.concat([of_bias_C, of_weight_C]).astype("float64"))
        mean_dy_C, mean_dy_z_C = (sums / total).astype(dy.dtype).chunk(2)
        dx = _scale(dy, mean_dy_C, scale_C, last) - _scale(
            z, paddle.zeros_like(scale_C), scale_C * mean_dy_z_C, last
        )
        gradients = [dx, *([of_weight_C] if ctx.has_weight else []), of_bias_C]
        return tuple(grad if needed else None for grad, needed in zip(gradients, ctx.needed))


def _sum(x: paddle.Tensor, channels_last: bool) -> paddle.Tensor:
    """Sum over all axes but the channels', by contiguous rows: many times faster on a CPU than over axes at
    once."""
    if channels_last or x.ndim == 2:
        return x.reshape([-1, x.shape[-1]]).sum(0)
    return x.flatten(2).sum(2).sum(0)


def _scale(
    x: paddle.Tensor,
    shift_C: paddle.Tensor,
    scale_C: paddle.Tensor,
    channels_last: bool,
    bias_C: paddle.Tensor | None = None,
) -> paddle.Tensor:
    """Compute (x - shift) * scale + bias by channel, in one pass: by the operator of evaluation."""
    return nn.functional.batch_norm(
        x,
        shift_C,
        paddle.ones_like(shift_C),
        scale_C,
        paddle.zeros_like(scale_C) if bias_C is None else bias_C,
        training=False,
        epsilon=0.0,
        data_format="NHWC" if channels_last else "NCHW",  # whatever the number of axes
    )


def synchronise(backbone: nn.Layer) -> nn.Layer:
    """Replace the batch normalisation layers of `backbone` by synchronised ones; return the backbone,
    changed.

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
