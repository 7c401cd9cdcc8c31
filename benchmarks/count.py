"""Count a network's parameters, and the multiply-accumulates (MACs) in a forward pass with one image.

Forward hooks count convolutions, linear layers and attention. Norms, activations and additions are not
counted, as in the papers' tables. Try it:

    count(BACKBONES.get("IResNet50")(512), (3, 112, 112))  # Count(parameters=43590848, macs=6309...)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import paddle
from paddle import nn

from plsc.backbones import face_vit


class Count(NamedTuple):
    """A network's size."""

    parameters: int
    """Numbers in the weights, except BatchNorm's running statistics."""
    macs: int
    """Multiply-accumulates for one image."""


def count(net: nn.Layer, image_shape: tuple[int, int, int]) -> Count:
    """Count parameters and MACs by running `net` on one image in evaluation mode."""
    macs: list[int] = []

    def after(layer, inputs, output) -> None:
        macs.append(_macs(layer, inputs[0].shape, output.shape))

    hooks = [layer.register_forward_post_hook(after) for layer in net.sublayers(include_self=True)]
    training = net.training
    net.eval()
    try:
        with paddle.no_grad():
            net(paddle.zeros([1, *image_shape]))
    finally:
        for hook in hooks:
            hook.remove()
        if training:
            net.train()
    statistics = ("._mean", "._variance")
    parameters = sum(p.size for name, p in net.named_parameters() if not f".{name}".endswith(statistics))
    return Count(parameters, sum(macs))


def _macs(layer: nn.Layer, inputs: list[int], output: list[int]) -> int:
    if isinstance(layer, nn.Conv2D):
        return math.prod(output) * math.prod(layer.weight.shape[1:])
    if isinstance(layer, nn.Linear):
        return math.prod(output) * layer.weight.shape[0]
    if isinstance(layer, face_vit._Attention):
        images, tokens, width = inputs
        return 2 * images * tokens * tokens * width
    return 0
