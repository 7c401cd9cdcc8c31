"""Tests of the convolution by oneDNN against Paddle's operator."""

import numpy as np
import paddle
import pytest
from paddle import nn

from plsc.backbones import onednn
from plsc.backbones.layers import Conv2D, enter, leave

pytestmark = pytest.mark.skipif(onednn.library() is None, reason="this build of Paddle has no oneDNN")

SHAPES = [  # B, H, W, inputs, outputs, kernel, stride, padding, dilation, groups, bias
    (3, 9, 7, 1, 5, 3, 1, 1, 1, 1, False),
    (2, 8, 8, 3, 16, 3, 2, 1, 1, 1, False),
    (1, 7, 10, 16, 32, 1, 2, 0, 1, 1, False),
    (4, 5, 5, 33, 17, 1, 1, 0, 1, 1, True),
    (2, 6, 9, 24, 24, 3, 1, 1, 1, 24, False),
    (2, 9, 6, 24, 24, 3, 2, 1, 1, 24, True),
    (3, 7, 7, 16, 16, 3, 1, 1, 1, 8, False),
    (2, 7, 7, 12, 24, 3, 1, 1, 1, 4, True),
    (2, 7, 7, 32, 32, 7, 1, 0, 1, 32, False),
    (1, 12, 11, 4, 6, (3, 5), (2, 1), (0, 2), 1, 2, True),
    (2, 12, 12, 8, 8, 3, 1, 2, 2, 1, False),
]


def pair_of_layers(shape, seed=0):
    """Build the layer and Paddle's with the same weights, and images [B, C, H, W]."""
    batch, height, width, inputs, outputs, kernel, stride, padding, dilation, groups, bias = shape
    paddle.seed(seed)
    settings = [inputs, outputs, kernel, stride, padding, dilation, groups]
    ours = Conv2D(*settings, bias_attr=None if bias else False)
    twin = nn.Conv2D(*settings, bias_attr=None if bias else False)
    twin.set_state_dict(ours.state_dict())
    return ours, twin, paddle.randn([batch, inputs, height, width])


def run(layer, images, turn):
    """Return the output and all gradients, of images, weight and bias, for an output gradient of its own."""
    x = images.clone().detach()
    x.stop_gradient = False
    out = leave(layer(enter(x))) if turn else layer(x)
    rng = np.random.default_rng(1)
    out.backward(paddle.to_tensor(rng.normal(size=out.shape).astype(np.float32)))
    return [t.numpy() for t in (out, x.grad, *(p.grad for p in layer.parameters()))]


@pytest.mark.parametrize("shape", SHAPES)
def test_output_and_gradients_are_those_of_the_twin(shape):
    ours, twin, images = pair_of_layers(shape)
    for got, expected in zip(run(ours, images, True), run(twin, images, False), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * abs(expected).max())
