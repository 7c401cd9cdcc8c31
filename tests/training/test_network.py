"""The backbone in a training step: the same gradients as by one graph from the images to the loss."""

import numpy as np
import paddle
import pytest

from plsc.data.preprocessing import Preprocessing
from plsc.errors import UserError
from plsc.training.network import Network
from tests.tiny_runs import IMAGE_SHAPE, Linear

PREPROCESSING = Preprocessing.of_images(IMAGE_SHAPE)
IMAGES = np.random.default_rng(0).integers(0, 256, (6, *IMAGE_SHAPE), np.uint8)


class Detached(Linear):
    def forward(self, images):
        return super().forward(images).detach()


def gradients(net) -> dict[str, np.ndarray]:
    return {name: parameter.grad.numpy() for name, parameter in net.named_parameters()}


def test_gradients_are_those_of_one_graph():
    net = Linear()
    network = Network(net, PREPROCESSING, 8, seed=0)
    emb_BD = network.forward(IMAGES, 0)
    emb_BD.square().sum().backward()
    assert emb_BD.is_leaf and net.linear.weight.grad is None
    network.backward(emb_BD.grad)
    found = gradients(net)
    net.clear_gradients()
    network.own_backward(emb_BD.grad)
    again = gradients(net)
    net.clear_gradients()
    net(PREPROCESSING(paddle.to_tensor(IMAGES))).square().sum().backward()
    for name, expected in gradients(net).items():
        assert found[name].tobytes() == again[name].tobytes() == expected.tobytes(), name


def test_embeddings_without_a_gradient_are_refused():
    with pytest.raises(UserError, match="embeddings have no gradient"):
        Network(Detached(), PREPROCESSING, 8, seed=0).forward(IMAGES, 0)
