"""Confidence intervals against what theory says of them."""

import numpy as np
import pytest

from plsc.evaluation.intervals import (
    percent,
    resampled,
    wilson,
    with_interval,
)


def test_identities_are_drawn_and_their_pairs_with_them():
    identities = np.array([[0, 0], [1, 1], [0, 1]])
    draws = np.array([*resampled(identities)])
    assert len(draws) == 1000 and np.array_equal(draws, [*resampled(identities)])
    assert {*map(tuple, draws.tolist())} == {(2, 0, 0), (1, 1, 1), (0, 2, 0)}


@pytest.mark.parametrize(
    "rate, count, expected",  # Newcombe 1998, table I
    [
        (81 / 263, 263, (0.2553, 0.3662)),
        (15 / 148, 148, (0.0624, 0.1605)),
        (0, 20, (0, 0.1611)),
        (1 / 29, 29, (0.0061, 0.1718)),
    ],
)
def test_wilson_equals_the_published_examples(rate, count, expected):
    assert wilson(rate, count) == pytest.approx(expected, abs=5e-5)
    assert wilson(1 - rate, count) == pytest.approx((1 - expected[1], 1 - expected[0]), abs=5e-5)


def test_rates_as_people_read_them():
    assert percent(0.98273) == with_interval(0.98273, None) == "98.27 %"
    assert with_interval(0.5, (0.401, 0.599)) == "50.00 % (40.10 to 59.90)"
