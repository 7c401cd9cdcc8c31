"""ResNet of PLSC 0.x: every number against plain NumPy, and what sets it apart from IResNet."""

from functools import partial

import numpy as np
import paddle

from tests.backbones.numpy_layers import assert_same, scatter
from tests.backbones.test_iresnet import by_hand
from tests.helpers.small_networks import SmallResNet50


def test_the_numbers_are_those_of_plain_numpy():
    net = SmallResNet50(embedding_size=8, image_shape=(3, 20, 16))
    state = scatter(net)
    images = np.random.default_rng(1).normal(size=(2, 3, 20, 16))
    assert_same(net, partial(by_hand, blocks=SmallResNet50.blocks, epsilon=2e-5), state, images)


def test_what_sets_it_apart():
    paddle.seed(0)
    net = SmallResNet50(embedding_size=64, image_shape=(3, 32, 32))
    assert net.dropout.p == 0.4 and not net.features.weight.stop_gradient
    slopes = [value for name, value in net.named_parameters() if name.endswith("prelu._weight")]
    assert len(slopes) == 6 and all(slope.shape == [1] and slope.item() == 0.25 for slope in slopes)
    for name, parameter in net.named_parameters():
        value, area = parameter.numpy(), int(np.prod(parameter.shape[2:]))
        if value.ndim > 1:
            outputs = value.shape[0] if value.ndim == 4 else value.shape[1]
            assert abs(value.std() * (outputs * area / 2) ** 0.5 - 1) < 6 / np.sqrt(value.size), name
    assert not net.fc.bias.numpy().any()
