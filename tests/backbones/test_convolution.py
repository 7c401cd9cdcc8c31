"""Tests of the convolution by oneDNN against Paddle's operator."""

import copy

import numpy as np
import paddle
import pytest
from paddle import nn

from plsc.backbones.layers import Conv2D, by_cpu_kernels, enter, leave
from tests.helpers.bounds import assert_within, sums

pytestmark = pytest.mark.skipif(not by_cpu_kernels(paddle.zeros([1])), reason="no oneDNN, or no kernels")

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
    # A result that is one pixel wide.
    (2, 4, 3, 1, 64, (7, 5), (1, 3), (2, 2), 1, 1, False),
    (2, 14, 2, 64, 32, 3, 2, 1, 1, 4, True),
    (1, 14, 3, 32, 16, 2, 2, 0, 1, 1, False),
    # Rows or columns of the kernel meet only padding.
    (4, 1, 1, 20, 50, 3, 2, 1, 1, 1, False),
    (4, 1, 1, 32, 64, 3, 2, 1, 1, 2, False),
    (2, 8, 1, 3, 64, (5, 3), (2, 3), (1, 2), 1, 1, True),
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


def run(layer, images, grad=None, frozen=()):
    """Return the output and all gradients, of images, weight and bias, for an output gradient."""
    x = images.clone().detach()
    x.stop_gradient = "images" in frozen
    for name in ("weight", "bias"):
        if getattr(layer, name) is not None:
            getattr(layer, name).stop_gradient = name in frozen
    out = leave(layer(enter(x))) if isinstance(layer, Conv2D) else layer(x)
    if grad is None:
        grad = paddle.to_tensor(np.random.default_rng(1).normal(size=out.shape), out.dtype)
    layer.clear_gradients()
    if not out.stop_gradient:
        out.backward(grad)
    gradients = [tensor.grad for tensor in (x, layer.weight, layer.bias) if tensor is not None]
    return [out.numpy(), *(None if each is None else each.numpy() for each in gradients)]


def exact(layer, images, grad=None, frozen=(), halves=0):
    """Return what `run` gives in float64 by Paddle's operator, and its bounds."""
    wide = copy.deepcopy(layer)
    wide.to(dtype="float64")

    def compute(images, grad, *values):
        for parameter, value in zip(wide.parameters(), values):
            parameter.set_value(value)
        return run(wide, paddle.to_tensor(images), paddle.to_tensor(grad), frozen)

    if grad is None:
        grad = np.random.default_rng(1).normal(size=run(layer, images)[0].shape)
    arrays = [np.asarray(array, np.float64) for array in (images, grad, *layer.parameters())]
    return compute(*arrays), sums(compute, *arrays, halves=halves)


@pytest.mark.parametrize("shape", SHAPES)
def test_output_and_gradients_are_those_of_the_twin(shape):
    ours, _, images = pair_of_layers(shape)
    assert_within(run(ours, images), *exact(ours, images))


def test_the_same_bits_again_and_after_another_batch_size():
    """The last batch of an epoch is smaller."""
    ours, _, images = pair_of_layers(SHAPES[1])
    first, fewer, again = (run(ours, x) for x in (images, images[:1], images))
    assert [a.tobytes() for a in first] == [a.tobytes() for a in again]
    assert_within(fewer, *exact(ours, images[:1]))


def test_pictures_and_gradients_that_are_not_contiguous():
    ours, _, images = pair_of_layers(SHAPES[5])
    wide = paddle.concat([images, images * 3], axis=3)
    every_second = wide[:, :, :, ::2].detach()
    grad = paddle.randn([2, 24, 3, 5]).transpose([0, 1, 3, 2])
    assert_within(run(ours, every_second, grad), *exact(ours, every_second, grad))
    turned = enter(images).transpose([0, 2, 1, 3])  # a view of other strides
    assert ours(turned).numpy().tobytes() == ours(turned.clone()).numpy().tobytes()


@pytest.mark.parametrize("frozen", [(), ("weight",), ("bias",), ("weight", "bias")])
@pytest.mark.parametrize("of_images", [True, False])
def test_only_what_is_trained_gets_a_gradient(frozen, of_images):
    ours, _, images = pair_of_layers(SHAPES[3])
    frozen = frozen if of_images else ("images", *frozen)
    found = run(ours, images, frozen=frozen)
    assert [grad is None for grad in found[1:]] == [name in frozen for name in ("images", "weight", "bias")]
    assert_within(found, *exact(ours, images, frozen=frozen))


def test_without_kernels_it_is_the_twin(monkeypatch):
    monkeypatch.setenv("PLSC_KERNELS", "0")
    ours, twin, images = pair_of_layers(SHAPES[1])
    assert enter(images) is images
    for got, expected in zip(run(ours, images), run(twin, images)):
        assert got.tobytes() == expected.tobytes()


def test_pictures_of_other_channels_are_refused():
    """Rather than other memory be read."""
    ours, _, _ = pair_of_layers(SHAPES[1])
    with pytest.raises(AssertionError):
        ours(paddle.randn([2, 8, 8, 4]))
