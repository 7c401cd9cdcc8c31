"""IResNet: every number against plain NumPy, the published sizes, the maps, the names, the initial weights,
and dropout."""

from functools import partial

import numpy as np
import paddle
import pytest

from plsc.backbones.iresnet import IResNet18, IResNet34, IResNet50, IResNet100, IResNet200
from tests.backbones.numpy_layers import assert_same, batch_norm, convolve, prelu, scatter
from tests.helpers.bounds import assert_within, perturbed
from tests.helpers.small_networks import SmallIResNet
from tests.helpers.undrawn import undrawn


def build(cls=SmallIResNet, **options):
    paddle.seed(0)
    return cls(**{"embedding_size": 8, "image_shape": (3, 20, 16), **options})


def by_hand(state, x, blocks, epsilon=1e-5):
    norm = partial(batch_norm, epsilon=epsilon)
    x = prelu(norm(convolve(x, state["conv1.weight"], 1, 1), state, "bn1"), state, "prelu")
    for stage, depth in enumerate(blocks, 1):
        for place in range(depth):
            name, stride = f"layer{stage}.{place}", 2 if place == 0 else 1
            y = convolve(norm(x, state, f"{name}.bn1"), state[f"{name}.conv1.weight"], 1, 1)
            y = prelu(norm(y, state, f"{name}.bn2"), state, f"{name}.prelu")
            y = norm(convolve(y, state[f"{name}.conv2.weight"], stride, 1), state, f"{name}.bn3")
            if place == 0:
                x = convolve(x, state[f"{name}.downsample.0.weight"], 2)
                x = norm(x, state, f"{name}.downsample.1")
            x = x + y
    x = norm(x, state, "bn2").reshape(len(x), -1)
    return norm(x @ state["fc.weight"] + state["fc.bias"], state, "features")


@pytest.mark.parametrize("image_shape", [(3, 20, 16), (1, 17, 1)])
def test_the_numbers_are_those_of_plain_numpy(image_shape):
    net = build(image_shape=image_shape)
    state = scatter(net)
    images = np.random.default_rng(1).normal(size=(2, *image_shape))
    assert_same(net, partial(by_hand, blocks=SmallIResNet.blocks), state, images)


@pytest.mark.parametrize(
    "cls, trained",
    [
        (IResNet18, 24_025_088),
        (IResNet34, 34_138_816),
        (IResNet50, 43_590_336),
        (IResNet100, 65_155_648),
        (IResNet200, 118_833_408),
    ],
)
def test_the_trained_parameters_at_112_are_those_of_the_source(cls, trained):
    with undrawn():
        net = build(cls, image_shape=(3, 16, 16), embedding_size=2)
    found = sum(p.size for p in net.parameters() if not p.stop_gradient)
    assert found - (512 * 2 + 2 + 2) + (512 * 49 * 512 + 512 + 512) == trained


def test_the_initial_weights_are_those_of_the_source():
    net = build(IResNet18, image_shape=(3, 112, 112))
    for name, parameter in net.named_parameters():
        value = parameter.numpy()
        if value.ndim == 4:
            assert abs(value.std() / 0.1 - 1) < 5 / np.sqrt(value.size), name
        elif name == "fc.weight":
            assert 0.99 < np.abs(value).max() * np.sqrt(512 * 49) <= 1.001
        elif "prelu" in name:
            assert (value == 0.25).all()
        elif name != "fc.bias":
            assert (value == name.endswith(("weight", "_variance"))).all(), name


def test_the_last_norm_is_paddles_in_training_too():
    net, plain = build(), paddle.nn.BatchNorm1D(8)
    state = {name: np.random.default_rng(0).random(t.shape, "f4") for name, t in plain.state_dict().items()}
    x, grad = paddle.randn([5, 8]).numpy(), paddle.randn([5, 8]).numpy()

    def run(layer, state, x, grad):
        layer.to(dtype=str(x.dtype))
        layer.set_state_dict(state)
        layer.clear_gradients()
        x = paddle.to_tensor(x, stop_gradient=False)
        out = layer(x)
        out.backward(paddle.to_tensor(grad))
        return [t.numpy() for t in (out, x.grad, layer.bias.grad, layer._mean, layer._variance)]

    want, bound = perturbed(partial(run, plain), state, x, grad, terms=5)
    assert_within(run(net.features, state, x, grad), want, bound)
