"""Each margin against its formula and its slope against finite differences, in float64-sized steps."""

import math

import numpy as np
import paddle
import pytest

from plsc.heads.margins import ArcFace, CosFace
from tests import reference

GRID = np.linspace(-1, 1, 2001)


@pytest.mark.parametrize(
    "margin,dense",
    [
        (ArcFace(0.5), reference.arcface),
        (ArcFace(1.2), reference.arcface),
        (CosFace(0.35), reference.cosface),
    ],
)
def test_value_and_slope(margin, dense):
    found = margin(paddle.to_tensor(GRID, dtype="float32"), paddle.ones([len(GRID)]))
    target, slope = found.cosine, found.slope
    want, _ = dense(GRID, margin.margin)
    assert np.abs(target.numpy() - want).max() < 2e-6
    inside = (np.abs(GRID) < 0.999) & (
        np.abs(GRID + math.cos(margin.margin)) > 2e-3
    )  # not across the kink at pi - m
    h = 1e-6
    numeric = (dense(GRID + h, margin.margin)[0] - dense(GRID - h, margin.margin)[0]) / (2 * h)
    assert np.abs(slope.numpy() - numeric)[inside].max() < 1e-3 * np.abs(numeric[inside]).max()


def test_arcface_falls_with_the_angle_everywhere():
    found = ArcFace(0.5)(paddle.to_tensor(GRID, dtype="float32"), paddle.ones([len(GRID)]))
    target, slope = found.cosine, found.slope
    assert (
        (np.diff(target.numpy()) > -1e-6).all()
        and (slope.numpy() > 0).all()
        and np.isfinite(slope.numpy()).all()
    )
