"""LeNet: the maps, the numbers against plain NumPy, the initial weights, and the eight tensors with the
head's two."""

import numpy as np
import paddle
import pytest

from plsc.backbones.lenet import LeNet
from plsc.heads.build import make_head
from tests.backbones.numpy_layers import convolve
from tests.helpers.bounds import assert_within, perturbed
from tests.helpers.refusals import refusal


def build(**options):
    paddle.seed(3)
    return LeNet(**options)


def average_pool(x):
    images, channels, height, width = x.shape
    height, width = height // 2, width // 2
    x = x[:, :, : 2 * height, : 2 * width].reshape(images, channels, height, 2, width, 2)
    return x.mean(axis=(3, 5))


@pytest.mark.parametrize("image_shape", [(1, 28, 28), (3, 17, 30), (1, 14, 14)])
def test_the_numbers_are_those_of_plain_numpy(image_shape):
    """From a wide start, so that every layer counts. Pooling averages, and does not take maxima."""
    net = build(image_shape=image_shape, embedding_size=16, init_std=0.3)
    w1, b1, w2, b2, w3, b3 = (p.numpy().astype(np.float64) + 0.1 * (p.ndim == 1) for p in net.parameters())
    for parameter, value in zip(net.parameters(), (w1, b1, w2, b2, w3, b3)):
        parameter.set_value(value.astype(np.float32))
    x = np.random.default_rng(0).random((3, *image_shape), np.float32)

    def by_hand(x, w1, b1, w2, b2, w3, b3):
        maps = average_pool(np.maximum(convolve(x, w1) + b1[:, None, None], 0))
        maps = average_pool(np.maximum(convolve(maps, w2) + b2[:, None, None], 0))
        return np.maximum(maps.reshape(3, -1) @ w3 + b3, 0)

    want, bound = perturbed(by_hand, x, w1, b1, w2, b2, w3, b3, terms=800)
    assert 0.2 < (want > 0).mean() < 0.8
    assert_within(net(paddle.to_tensor(x)).numpy(), want, bound)


def test_with_the_heads_two_there_are_eight_tensors_of_129068_numbers():
    head = make_head(10, 128, bias=True, init_std=0.01).bank.state()
    tensors = [p.numpy() for p in build().parameters()] + [head["centres"].T, head["bias"]]
    shapes = [(20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,), (800, 128), (128,), (128, 10), (10,)]
    assert [tensor.shape for tensor in tensors] == shapes
    assert sum(tensor.size for tensor in tensors) == 129_068


@pytest.mark.parametrize("std", [0.01, 0.05])
def test_the_initial_weights(std):
    one, same = (
        [p.numpy() for p in build(**({} if std == 0.01 else {"init_std": std})).parameters()]
        for _ in range(2)
    )
    for weight, again in zip(one, same):
        assert np.array_equal(weight, again), "the seed decides"
        if weight.ndim == 1:
            assert not weight.any()
    w3 = one[4] / std
    assert 0.95 < w3.std() < 1.05 and abs(w3.mean()) < 0.02
    assert abs((np.abs(w3) < 1).mean() - 0.6827) < 0.01, "normal, neither uniform nor cut off"


def test_a_picture_that_is_too_small():
    said = refusal(LeNet, image_shape=(1, 28, 13))
    assert said == "Model.name: LeNet needs images of at least 14 x 14 pixels (got 28 x 13)"
