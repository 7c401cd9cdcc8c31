"""The dense reference itself: its gradients against differences of its losses."""

import numpy as np
import pytest

from tests.heads import reference
from tests.heads.reference import DenseHead
from tests.heads.ways import without_kernels

pytestmark = without_kernels

MARGINS = [(None, 1.0), ((reference.arcface, 0.5), 8.0), ((reference.cosface, 0.35), 8.0)]


@pytest.mark.parametrize("margin,scale", MARGINS)
def test_gradients_are_differences_of_the_loss(margin, scale):
    rng = np.random.default_rng(0)
    w, x, label = rng.standard_normal((5, 3)), rng.standard_normal((4, 3)), np.array([0, 4, 2, 2])

    def loss(x, w):
        return DenseHead(w, None, margin, scale).loss_and_gradients(x, label)[0].mean()

    _, dx, dw, _ = DenseHead(w, None, margin, scale).loss_and_gradients(x, label)
    for got, step in ((dx, lambda h: loss(x + h, w)), (dw, lambda h: loss(x, w + h))):
        for index in np.ndindex(got.shape):
            h = np.zeros(got.shape)
            h[index] = 1e-6
            assert got[index] == pytest.approx((step(h) - step(-h)) / 2e-6, abs=1e-7)


def test_only_the_classes_that_take_part_move():
    head = DenseHead(np.eye(4), np.zeros(4))
    head.taken = np.array([1, 3])
    _, _, dw, db = head.loss_and_gradients(np.arange(8.0).reshape(2, 4), np.array([1, 3]))
    head.step(dw, db, 0.1)
    assert (head.w[[0, 2]] == np.eye(4)[[0, 2]]).all() and (head.w[[1, 3]] != np.eye(4)[[1, 3]]).any()
