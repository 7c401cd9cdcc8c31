"""Tests of the convolution by oneDNN against Paddle's operator."""

import numpy as np
import paddle
import pytest
from paddle import nn

from plsc.backbones.layers import Conv2D, by_onednn, enter, leave

pytestmark = pytest.mark.skipif(not by_onednn(paddle.zeros([1])), reason="no oneDNN in Paddle, or no kernels")

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


def test_the_same_bits_again_and_after_another_batch_size():
    """The last batch of an epoch is smaller."""
    ours, _, images = pair_of_layers(SHAPES[1])
    first = run(ours, images, True)
    ours.clear_gradients()
    fewer = run(ours, images[:1], True)
    ours.clear_gradients()
    again = run(ours, images, True)
    assert [a.tobytes() for a in first] == [a.tobytes() for a in again]
    np.testing.assert_allclose(fewer[0], first[0][:1], rtol=0, atol=1e-5)


def test_new_weights_are_taken():
    """Their copy in oneDNN's layout is made again."""
    ours, twin, images = pair_of_layers(SHAPES[3])
    run(ours, images, True)
    ours.clear_gradients()
    with paddle.no_grad():
        ours.weight.set_value(ours.weight * 2)
        twin.weight.set_value(ours.weight)
    for got, expected in zip(run(ours, images, True), run(twin, images, False), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * abs(expected).max())


def test_pictures_and_gradients_that_are_not_contiguous():
    ours, twin, images = pair_of_layers(SHAPES[5])
    wide = paddle.concat([images, images * 3], axis=3)
    every_second = wide[:, :, :, ::2].detach()
    grad = paddle.randn([2, 24, 3, 5]).transpose([0, 1, 3, 2])
    results = []
    for layer, turn in ((ours, True), (twin, False)):
        x = every_second.clone().detach()
        x.stop_gradient = False
        out = leave(layer(enter(x))) if turn else layer(x)
        out.backward(grad)
        results.append([out.numpy(), x.grad.numpy(), layer.weight.grad.numpy()])
    for got, expected in zip(*results):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * abs(expected).max())
    turned = enter(images).transpose([0, 2, 1, 3])  # a view of other strides
    assert ours(turned).numpy().tobytes() == ours(turned.clone()).numpy().tobytes()


@pytest.mark.parametrize("frozen", [(), ("weight",), ("bias",), ("weight", "bias")])
@pytest.mark.parametrize("of_images", [True, False])
def test_only_what_is_trained_gets_a_gradient(frozen, of_images):
    ours, twin, images = pair_of_layers(SHAPES[3])
    results = []
    for layer, turn in ((ours, True), (twin, False)):
        x = images.clone().detach()
        x.stop_gradient = not of_images
        for name in frozen:
            getattr(layer, name).stop_gradient = True
        out = leave(layer(enter(x))) if turn else layer(x)
        if not out.stop_gradient:
            (out * out).sum().backward()
        results.append([x.grad, layer.weight.grad, layer.bias.grad, out.stop_gradient])
    *ours, ours_stops = results[0]
    *expected, stops = results[1]
    assert ours_stops == stops == (not of_images and len(frozen) == 2)
    for got, twin_grad in zip(ours, expected):
        assert (got is None) == (twin_grad is None)
        if twin_grad is not None:
            grad = twin_grad.numpy()
            np.testing.assert_allclose(got.numpy(), grad, rtol=0, atol=1e-5 * abs(grad).max())


def test_without_kernels_it_is_the_twin(monkeypatch):
    monkeypatch.setenv("PLSC_KERNELS", "0")
    ours, twin, images = pair_of_layers(SHAPES[1])
    assert enter(images) is images
    for got, expected in zip(run(ours, images, True), run(twin, images, False), strict=True):
        assert got.tobytes() == expected.tobytes()


def test_float64_is_the_twin():
    ours, twin, images = pair_of_layers(SHAPES[1])
    images = images.astype("float64")
    ours.to(dtype="float64")
    twin.to(dtype="float64")
    for got, expected in zip(run_wide(ours, images), run_wide(twin, images), strict=True):
        assert got.dtype == np.float64 and got.tobytes() == expected.tobytes()


def run_wide(layer, images):
    out = leave(layer(enter(images)))
    (out * out).sum().backward()
    return [out.numpy(), layer.weight.grad.numpy()]


def test_pictures_of_other_channels_are_refused():
    """Rather than other memory be read."""
    ours, _, _ = pair_of_layers(SHAPES[1])
    with pytest.raises(AssertionError):
        ours(paddle.randn([2, 8, 8, 4]))
