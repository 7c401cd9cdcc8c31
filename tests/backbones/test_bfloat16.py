"""Layers in bfloat16 against float64: each within k * HALF_EPS * sum(|terms|), parameters' gradients summed
in float32."""

import numpy as np
import paddle
import pytest

from plsc.backbones.layers import (
    Addresses,
    AvgPool2D,
    Dropout,
    ReLU,
    by_cpu_kernels,
    enter,
    in_bfloat16,
    leave,
)
from plsc.backbones.layers.transformer import add_positions
from plsc.native import onednn
from tests.backbones.test_by_cpu_kernels import NETWORKS, with_a_twin
from tests.backbones.test_convolution import SHAPES, exact, pair_of_layers, run
from tests.backbones.test_transformer_layers import assert_near_float64, half, no_bfloat16, randn
from tests.helpers.bounds import HALF_EPS, assert_within, rounded

pytestmark = no_bfloat16

# For the weight gradient's kernel: a part of the rows at a time, an odd picture count, and steps of all
# kinds.
BY_PAIRS = [
    (3, 60, 40, 64, 64, 3, 1, 1, 1, 1, False),
    (5, 9, 11, 32, 32, 3, 2, 1, 1, 1, False),
    (3, 90, 35, 64, 32, 3, 2, 1, 1, 1, False),
    (2, 12, 9, 32, 96, (3, 1), (2, 1), (2, 0), (2, 1), 1, False),
    (4, 6, 6, 32, 64, 1, 1, 0, 1, 1, False),
    (1, 3, 3, 32, 32, 5, 1, 4, 1, 1, False),
    (2, 19, 20, 64, 32, 3, 1, 0, 3, 1, False),
]


@pytest.mark.parametrize("amx", [False, True])
@pytest.mark.parametrize("shape", BY_PAIRS)
def test_gradient_by_weights_of_each_instruction(monkeypatch, shape, amx):
    if amx and not onednn.has_amx():
        pytest.skip("no AMX on this processor")
    monkeypatch.setattr(onednn, "has_amx", lambda: amx)
    test_convolution(shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_convolution(shape):
    layer, _, images = pair_of_layers(shape)
    images = paddle.to_tensor(half(images))
    with in_bfloat16():
        grad = paddle.to_tensor(randn(*run(layer, images)[0].shape))
        got = run(layer, images, grad)
        again = run(layer, images, grad)
    assert [a.tobytes() for a in got] == [a.tobytes() for a in again]
    want, of_pictures = exact(layer, images, grad, halves=2)  # the weights, and the result
    _, of_parameters = exact(layer, images, grad)
    assert_within(got[:2], want[:2], of_pictures[:2])
    assert_within(got[2:], want[2:], of_parameters[2:])


def test_what_is_between_is_bfloat16_and_parameters_have_gradients_of_float32():
    layer, _, images = pair_of_layers(SHAPES[3])
    with in_bfloat16():
        out = layer(enter(images))
    assert out.dtype == paddle.bfloat16 and leave(out).dtype == paddle.float32
    leave(out).sum().backward()
    assert layer.weight.grad.dtype == layer.bias.grad.dtype == paddle.float32
    assert enter(images).dtype == paddle.float32


def test_dropout_keeps_the_mean():
    """bfloat16 cannot represent 1 / (1 - p), so numbers are multiplied in float32 and rounded after that."""
    drop = Dropout(0.3)
    with Addresses(drop, 0).use(0, 0, 4):
        out = drop(paddle.full([4, 1000], 3.0).astype("bfloat16")).astype("float32").numpy()
    assert set(np.unique(out)) == {0.0, float(half(3 / 0.7))}


def test_positions():
    x, positions, grad = randn(5, 7, 8), randn(1, 7, 8, seed=1), randn(5, 7, 8, seed=2)
    tensor = paddle.to_tensor(x).astype("bfloat16")
    tensor.stop_gradient = False
    places = paddle.to_tensor(positions, stop_gradient=False)
    out = add_positions(tensor, places)
    out.backward(paddle.to_tensor(grad).astype("bfloat16"))
    assert_within(
        out.astype("float32").numpy(), x + positions, HALF_EPS / 2 * (np.abs(x) + np.abs(positions))
    )
    assert_within(places.grad.numpy()[0], grad.sum(0), 5 * 2**-23 * np.abs(grad).sum(0))


@pytest.mark.parametrize("layer", [ReLU(), AvgPool2D(2)])
def test_pictures_pointwise_and_pooled(monkeypatch, layer):
    with_layout = lambda x: leave_as(layer(enter_as(x)))
    out = (2, 6, 5, 4) if isinstance(layer, ReLU) else (2, 6, 2, 2)
    assert_near_float64(monkeypatch, "bfloat16", with_layout, [randn(2, 6, 5, 4)], out_shape=out)


def enter_as(x):
    """Return pictures [N, C, H, W] of any dtype in the layers' layout."""
    return x.transpose([0, 2, 3, 1]) if by_cpu_kernels(x) else x


def leave_as(x):
    return x.transpose([0, 3, 1, 2]) if by_cpu_kernels(x) else x


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network(name, training, monkeypatch):
    """With slopes of 1, as in test_by_cpu_kernels.py."""
    net, exact, shape = with_a_twin(name)
    for each in (net, exact):
        each.train() if training else each.eval()
    images = paddle.to_tensor(randn(16, *shape))
    with in_bfloat16():
        got = net(images).numpy()
    monkeypatch.setenv("PLSC_KERNELS", "0")
    wide = images.astype("float64")
    # An eighth, as all but a layer's result is computed in float32: `rounded` has some 8 roundings a layer.
    want, bound = rounded(exact, lambda: exact(wide).numpy(), terms=1, eps=HALF_EPS / 8)
    assert np.median(bound) < 0.5 * np.abs(want).max()
    assert_within(got, want, bound)
