"""Pictures to embeddings: the order, and what happens to the network's mode."""

import numpy as np
import paddle
import pytest
from paddle import nn

from plsc.errors import UserError
from plsc.training.embed import embed, to_input
from plsc.utils.preprocessing import Preprocessing
from tests.helpers.bounds import assert_within, rounded
from tests.helpers.refusals import refusal

PREPROCESSING = Preprocessing((1, 4, 3), mean=100.0, scale=0.01)
IMAGES = np.random.default_rng(0).integers(0, 256, (7, 1, 4, 3), np.uint8)


def net_with_norm():
    """Its embeddings differ between training and evaluation mode."""
    paddle.seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.BatchNorm1D(5))
    net(paddle.randn([8, 1, 4, 3]))
    return net


def embeddings(net, batch_size, count=7):
    return embed(net, lambda start, stop: IMAGES[start:stop], count, PREPROCESSING, batch_size)


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_the_batches_change_nothing(batch_size):
    net = net_with_norm()
    found = embeddings(net, batch_size)
    net.eval()
    assert found.dtype == np.float32 and found.shape == (7, 5)
    whole = rounded(net, lambda: net(to_input(IMAGES, PREPROCESSING)).numpy())
    assert_within(found, *whole, paths=2)


@pytest.mark.parametrize(
    "wrong, got",
    [
        (lambda pixels: pixels[:-1], "uint8 [2, 1, 4, 3]"),  # all later embeddings would be of other images
        (lambda pixels: pixels[:, 0], "uint8 [3, 4, 3]"),
        (lambda pixels: pixels / np.float32(255), "float32 [3, 1, 4, 3]"),
        (list, "list"),
    ],
)
def test_images_of_another_number_shape_or_dtype_are_refused(wrong, got):
    read = lambda start, stop: wrong(IMAGES[start:stop])
    said = refusal(embed, net_with_norm(), read, 7, PREPROCESSING, 3)
    assert said == f"images(0, 3) gave {got}; it must give uint8 [3, 1, 4, 3]"


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
    with pytest.raises(UserError, match="OSError in broken, .*: no such picture"):
        embed(net, broken, 7, PREPROCESSING, 2)
    assert net.training
