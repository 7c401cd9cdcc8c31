import numpy as np
import pytest

from plsc.evaluation.identification import identify
from plsc.evaluation.search import refuse_not_finite, unit_rows
from plsc.evaluation.templates import template_features
from plsc.evaluation.verification import verify_pairs
from tests.helpers.refusals import refusal


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_have_length_1_in_their_dtype_and_zeros_stay(dtype):
    rows = np.random.default_rng(0).normal(size=(5, 7)).astype(dtype)
    rows[3] = 0
    unit = unit_rows(rows)
    assert unit.dtype == dtype and not unit[3].any()
    # The length is a root over a sum of 7 squares: (7 + 1) roundings, halved by the root. Then one division.
    bound = (8 / 2 + 2) * np.finfo(dtype).eps
    wanted = (
        rows.astype(np.float64) / np.maximum(np.linalg.norm(rows.astype(np.float64), axis=1), 1e-300)[:, None]
    )
    assert (np.abs(unit - wanted) <= bound * np.abs(wanted)).all()


def test_a_row_whose_squares_are_too_small_stays_and_one_with_a_nan_is_nan():
    small = np.full((1, 4), 1e-30, np.float32)
    assert np.array_equal(unit_rows(small), small)
    assert np.isnan(unit_rows(np.array([[1, np.nan], [1, np.inf], [1e22, 0]], np.float32))).all()
    assert unit_rows(np.array([[3e-19, 4e-19]], np.float32))[0] == pytest.approx([0.6, 0.8], rel=1e-5)


def test_one_rule_for_lengths_in_every_evaluation():
    """1e22 has a finite float64 length; its float32 square overflows. 1e-30 counts as zero."""
    rows = np.eye(4, dtype=np.float32)
    pairs, same = np.array([[0, 1], [2, 3]]), np.array([True, False])
    for value in (1e22, np.inf, np.nan):
        rows[3] = value
        for call in (
            lambda: verify_pairs(rows, pairs, same),
            lambda: verify_pairs(rows.astype(np.float64), pairs, same),
            lambda: verify_pairs(template_features(rows, np.arange(4), np.arange(4)), pairs, same),
            lambda: identify(rows, np.array([0, 1]), np.array([2, 3]), np.array([0, 1, 0, 1])),
            lambda: refuse_not_finite(rows, "classification"),
        ):
            assert "is not finite; the network has diverged" in refusal(call)
        assert verify_pairs(rows, pairs[:1], same[:1]).similarity == 0  # nothing but the rows that are used
    rows[3] = [1e-30, 0, 1e-30, 0]
    assert "length 0: 1" in verify_pairs(rows, pairs, same).notes[-1]
