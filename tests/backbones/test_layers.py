"""Random numbers by address: right rates, unrelated masks, and the same ones however the samples are cut."""

import numpy as np
import paddle
import pytest
from paddle import nn

from plsc.backbones.layers import Addresses, Dropout
from tests.helpers.bounds import assert_within, perturbed, rounded
from tests.helpers.small_networks import SmallFaceViT


class Two(nn.Layer):
    """Two dropout layers side by side, as masks of ones."""

    def __init__(self, p, axis=None):
        super().__init__()
        self.a = Dropout(p, axis)
        self.b = Dropout(p, axis)

    def forward(self, x):
        return self.a(x), self.b(x)


def masks(net, step, first, shape, seed=0) -> list[np.ndarray]:
    net.train()
    with Addresses(net, seed).use(step, first, shape[0]):
        return [out.numpy() for out in net(paddle.ones(shape))]


@pytest.mark.parametrize("p", [0.1, 0.4, 0.9])
def test_rate_and_scale(p):
    (mask, _) = masks(Two(p), step=3, first=0, shape=[64, 40, 50])
    assert_within(
        mask[mask != 0], *perturbed(lambda p: np.full((mask != 0).sum(), 1 / (1 - p)), np.float64(p), terms=1)
    )
    n = mask.size
    assert abs((mask == 0).mean() - p) < 5 * (p * (1 - p) / n) ** 0.5
    of_sample = (mask == 0).mean(axis=(1, 2))
    of_place = (mask == 0).mean(axis=0)
    assert of_sample.std() == pytest.approx((p * (1 - p) / 2000) ** 0.5, rel=0.4)
    assert of_place.std() == pytest.approx((p * (1 - p) / 64) ** 0.5, rel=0.2)


def test_masks_are_unrelated():
    """Other layers, steps, seeds, samples and places give other numbers. Whether four corners of a rectangle
    are dropped together is checked, too."""
    net, shape = Two(0.5), [256, 512]
    a, b = masks(net, 0, 0, shape)
    others = [b, masks(net, 1, 0, shape)[0], masks(net, 0, 256, shape)[0], masks(net, 0, 0, shape, seed=1)[0]]
    others += [np.roll(a, by, axis) for by in (1, 2, 7) for axis in (0, 1)]
    signs = a - 1
    for other in others:
        assert abs((signs * (other - 1)).mean()) < 5 / signs.size**0.5
    corners = signs * np.roll(signs, 1, 0) * np.roll(signs, 1, 1) * np.roll(np.roll(signs, 1, 0), 1, 1)
    assert abs(corners.mean()) < 5 / signs.size**0.5


def test_axis_0_drops_whole_samples():
    (mask, other) = masks(Two(0.3, axis=0), step=0, first=0, shape=[4000, 2, 3])
    of_sample = mask[:, 0, 0]
    assert np.array_equal(mask, np.broadcast_to(of_sample[:, None, None], mask.shape))
    assert (of_sample == 0).mean() == pytest.approx(0.3, abs=0.04)
    assert ((of_sample == 0) & (other[:, 0, 0] == 0)).mean() == pytest.approx(0.09, abs=0.025)


def test_without_addresses_or_without_training_it_is_paddles():
    net, paddles = Dropout(0.4), nn.Dropout(0.4)
    x = paddle.randn([16, 32])
    paddle.seed(1)
    found = net(x).numpy()
    paddle.seed(1)
    assert found.tobytes() == paddles(x).numpy().tobytes()
    net.eval()
    with Addresses(net, 0).use(0, 0, 16):
        assert net(x).numpy().tobytes() == x.numpy().tobytes()
    for p in (0, 1):
        net = Dropout(p)
        with Addresses(net, 0).use(0, 0, 16):
            assert np.array_equal(net(x).numpy(), (1 - p) * x.numpy())


def test_a_vision_transformer_is_random_by_address_alone():
    """Its dropout, dropped branches and hidden patches do not change. Only the last part is normalised per
    batch."""
    paddle.seed(0)
    net = SmallFaceViT(8, (3, 36, 36), dropout=0.2, drop_path=0.5, mask_ratio=0.4)
    net.feature = nn.Identity()
    images, addresses = paddle.randn([6, 3, 36, 36]), Addresses(net, 0)

    def run(first, stop, step=2):
        with addresses.use(step, first, stop - first):
            return net(images[first:stop]).numpy()

    parts = np.concatenate([run(0, 2), run(2, 6)])
    assert np.abs(run(0, 6, step=3) - parts).max() > 0.1
    net.to(dtype="float64")
    images = images.astype("float64")
    assert_within(parts, *rounded(net, lambda: run(0, 6)))
