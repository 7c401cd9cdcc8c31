"""Confidence intervals against what theory says of them."""

import numpy as np
import pytest

from plsc.evaluation import intervals
from plsc.evaluation.intervals import bootstrap, percent, resamples, wilson, with_interval


def share(counts):
    return (counts[:, 1] / counts.sum(1))[:, None]


@pytest.mark.parametrize("exact", [True, False])
def test_the_bootstrap_of_a_share_is_the_binomials(monkeypatch, exact):
    if not exact:
        monkeypatch.setattr(intervals, "EXACT_PAIRS", 10)
        monkeypatch.setattr(intervals, "FEWER_RESAMPLES", 1000)
    found = bootstrap(np.array([4000, 1000]), share)
    half = 1.96 * np.sqrt(0.2 * 0.8 / 5000)
    assert found[:, 0] == pytest.approx([0.2 - half, 0.2 + half], abs=0.0015)
    assert np.array_equal(found, bootstrap(np.array([4000, 1000]), share))


def test_resamples_do_not_depend_on_the_blocks_but_for_their_number(monkeypatch):
    """The shape of the counts reaches the rates, and all resamples do."""
    seen = []

    def rates(counts):
        seen.append(counts.shape)
        assert (counts.sum((1, 2)) == 6).all()
        return np.zeros((len(counts), 2))

    monkeypatch.setattr(intervals, "_BLOCK", 40 * 6)
    assert bootstrap(np.array([[1, 2], [0, 3]]), rates).shape == (2, 2)
    assert {shape[1:] for shape in seen} == {(2, 2)} and sum(shape[0] for shape in seen) == 1000


def test_a_rate_that_some_resamples_lack_is_computed_from_the_others():
    def rates(counts):
        with np.errstate(invalid="ignore"):
            return (counts[:, 1] / (counts[:, 1] + counts[:, 2]))[:, None]

    found = bootstrap(np.array([5, 1, 1]), rates)
    assert found[:, 0].tolist() == [0, 1]


def test_how_many_resamples():
    assert [resamples(n) for n in (1, 20_000, 20_001, 15_000_000)] == [1000, 1000, 200, 200]


@pytest.mark.parametrize(
    "rate, count, expected",  # Newcombe 1998, table I
    [(81 / 263, 263, (0.2553, 0.3662)), (15 / 148, 148, (0.0624, 0.1605)), (0, 20, (0, 0.1611)), (1 / 29, 29, (0.0061, 0.1718))],
)  # fmt: skip
def test_wilson_equals_the_published_examples(rate, count, expected):
    assert wilson(rate, count) == pytest.approx(expected, abs=5e-5)
    assert wilson(1 - rate, count) == pytest.approx((1 - expected[1], 1 - expected[0]), abs=5e-5)


def test_rates_as_people_read_them():
    assert percent(0.98273) == with_interval(0.98273, None) == "98.27 %"
    assert with_interval(0.5, (0.401, 0.599)) == "50.00 % (40.10 to 59.90)"
