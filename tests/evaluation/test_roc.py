"""The ROC by counting, and its rates along the last axis."""

import numpy as np

from plsc.evaluation.roc import FARS, needed, roc_curve, tar_at_far, threshold_at_far


def test_a_curve_by_hand():
    roc = roc_curve(np.array([0.1, 0.9, 0.2, 0.2]), np.array([False, True, True, False]))
    assert roc.far.tolist() == [0, 0, 0.5, 1] and roc.tar.tolist() == [0, 0.5, 1, 1]
    assert roc.threshold.tolist() == [np.inf, 0.9, 0.2, 0.1] and roc.area() == 0.875


def test_the_threshold_at_a_rate_accepts_what_the_rate_allows_and_no_more():
    rng = np.random.default_rng(3)
    score, same = np.round(rng.normal(size=200), 1), rng.random(200) < 0.4
    roc = roc_curve(score, same)
    for limit in (0.001, 0.05, 0.3, 0.9):
        threshold = threshold_at_far(roc, limit)
        next_below = score[score <= threshold].max()
        assert np.mean(score[~same] > threshold) <= limit < np.mean(score[~same] >= next_below)
        assert np.mean(score[same] > threshold) == tar_at_far(roc.far, roc.tar, limit)


def test_how_many_negatives_a_rate_needs():
    assert [needed(far) for far in FARS] == [10, 100, 1000, 10_000, 100_000, 1_000_000]
    assert needed(0.3) == 4
