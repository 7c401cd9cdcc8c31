"""The MLP: its numbers against NumPy, samples of any shape, and no hidden layer."""

import numpy as np
import paddle

from plsc.backbones.mlp import MLP
from tests.helpers.bounds import assert_within, perturbed


def test_the_numbers_are_those_of_plain_numpy():
    paddle.seed(0)
    net = MLP(4, image_shape=(3, 5), widths=[6])
    net.eval()
    x = np.random.default_rng(0).normal(size=(7, 3, 5)).astype(np.float32)
    first, second = (layer.weight.numpy().astype(np.float64) for layer in (net.layers[1], net.layers[5]))
    factor = 1 / np.sqrt(1 + 1e-5)  # BatchNorm before its first batch

    def by_hand(x, first, second):
        return np.maximum(x.reshape(len(x), -1) @ first * factor, 0) @ second * factor

    want, bound = perturbed(by_hand, x, first, second, terms=15)
    assert want.shape == (7, 4) and want.any()
    assert_within(net(paddle.to_tensor(x)).numpy(), want, bound)


def test_without_a_hidden_layer_it_is_linear():
    kinds = [type(layer).__name__ for layer in MLP(4, image_shape=(9,), widths=[]).layers]
    assert kinds == ["Flatten", "Linear", "BatchNorm1D"]
