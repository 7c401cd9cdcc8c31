"""Pictures to embeddings: the pixels' normalisation, the order, and what happens to the network's mode."""

import numpy as np
import paddle
import pytest
from paddle import nn

from plsc.data.preprocessing import Preprocessing
from plsc.training.embed import embed, to_input

PREPROCESSING = Preprocessing.of_images((1, 4, 3), mean=100.0, scale=0.01)
IMAGES = np.random.default_rng(0).integers(0, 256, (7, 1, 4, 3), np.uint8)


def net_with_norm():
    """Its embeddings differ between training and evaluation mode."""
    paddle.seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.BatchNorm1D(5))
    net(paddle.randn([8, 1, 4, 3]))
    return net


def embeddings(net, batch_size, count=7):
    return embed(net, lambda start, stop: IMAGES[start:stop], count, PREPROCESSING, batch_size)


def test_pixels_are_normalised_by_the_preprocessing():
    x = to_input(IMAGES, PREPROCESSING)
    assert x.dtype == paddle.float32
    assert np.allclose(x.numpy(), (IMAGES.astype(np.float64) - 100.0) * 0.01, atol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_the_batches_change_nothing(batch_size):
    net = net_with_norm()
    found = embeddings(net, batch_size)
    net.eval()
    assert found.dtype == np.float32 and found.shape == (7, 5)
    assert np.allclose(found, net(to_input(IMAGES, PREPROCESSING)).numpy(), atol=1e-6)


def test_fewer_images_than_there_are():
    net = net_with_norm()
    assert np.allclose(embeddings(net, 2, count=3), embeddings(net, 7)[:3], atol=1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_the_network_keeps_its_mode_statistics_and_gradients(training):
    net = net_with_norm()
    net.train() if training else net.eval()
    before = {name: value.numpy() for name, value in net.state_dict().items()}
    embeddings(net, 3)
    assert net.training is training and net[2].training is training
    for name, value in net.state_dict().items():
        assert np.array_equal(value.numpy(), before[name]), name
    assert all(parameter.grad is None for parameter in net.parameters())


def test_the_mode_comes_back_after_a_failure():
    def broken(start, stop):
        raise OSError("no such picture")

    net = net_with_norm()
    with pytest.raises(OSError, match="no such picture"):
        embed(net, broken, 7, PREPROCESSING, 2)
    assert net.training
