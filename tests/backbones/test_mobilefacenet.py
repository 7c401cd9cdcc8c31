"""MobileFaceNet: every number against plain NumPy, its options, its initial weights, and what it refuses."""

from functools import partial

import numpy as np
import paddle
import pytest

from plsc.backbones.mobilefacenet import MobileFaceNet
from plsc.config import load
from tests.backbones.numpy_layers import assert_same, batch_norm, convolve, prelu, scatter
from tests.helpers.refusals import refusal


def build(**options):
    paddle.seed(0)
    return MobileFaceNet(**{"embedding_size": 8, "image_shape": (3, 36, 33), **options})


def by_hand(state, x, blocks):
    def conv(x, name, stride=1, padding=0):
        x = batch_norm(convolve(x, state[f"{name}.0.weight"], stride, padding), state, f"{name}.1")
        return prelu(x, state, f"{name}.2") if f"{name}.2._weight" in state else x

    def bottleneck(x, name, stride):
        x = conv(conv(x, f"{name}.0.layers"), f"{name}.1.layers", stride, 1)
        return conv(x, f"{name}.2.layers")

    x = conv(x, "layers.0.layers", 2, 1)
    if blocks[0] == 1:
        x = conv(x, "layers.1.layers", 1, 1)
    for stage, depth in enumerate(blocks):
        if stage:
            x = bottleneck(x, f"layers.{2 * stage}.layers", 2)
        for place in range(depth if stage or depth > 1 else 0):
            x = x + bottleneck(x, f"layers.{2 * stage + 1}.layers.{place}.layers", 1)
    x = conv(conv(x, "conv_sep.layers"), "features.layers.0.layers").reshape(len(x), -1)
    return batch_norm(x @ state["features.layers.2.weight"], state, "features.layers.3")


@pytest.mark.parametrize(
    "options",
    [
        {"scale": 1, "blocks": [1, 1, 2, 1]},
        {"scale": 2, "blocks": [1, 2, 1, 1], "image_shape": (1, 48, 16)},
        {"scale": 1, "blocks": [2, 1, 1, 2], "image_shape": (3, 1, 5)},
    ],
)
def test_the_numbers_are_those_of_plain_numpy(options):
    net = build(**options)
    state = scatter(net)
    images = np.random.default_rng(1).normal(size=(2, *options.get("image_shape", (3, 36, 33))))
    assert_same(net, partial(by_hand, blocks=options["blocks"]), state, images, terms=512)


@pytest.mark.parametrize(
    "options, trained", [({}, 2_059_520), ({"scale": 4, "blocks": [2, 8, 12, 4]}, 6_314_880)]
)
def test_the_trained_parameters_at_112_are_those_of_the_source(options, trained):
    """The two sizes in arcface_torch, "mbf" and "mbf_large", have these."""
    assert sum(p.size for p in MobileFaceNet(**options).parameters() if not p.stop_gradient) == trained


def test_the_initial_weights_are_those_of_the_source():
    for name, parameter in build(embedding_size=256).named_parameters():
        value = parameter.numpy()
        if value.ndim == 4:
            outputs, _, height, width = value.shape
            std = (2 / (outputs * height * width)) ** 0.5
            assert abs(value.std() / std - 1) < 6 / np.sqrt(value.size), name
        elif value.ndim == 2:
            assert abs(value.std() / (2 / 256) ** 0.5 - 1) < 0.01, name


def test_each_of_the_four_stages_has_a_residual():
    for blocks, said in (
        ("[1, 2, 3]", "List should have at least 4 items"),
        ("[1, 0, 3, 2]", "or equal to 1"),
    ):
        assert said in refusal(load, None, ["Model.name=MobileFaceNet", f"Model.blocks={blocks}"])
