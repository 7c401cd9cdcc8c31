"""Pair distances and row sums against NumPy's, bit for bit."""

import platform

import numpy as np
import pytest

from plsc.evaluation import template_features, verify_pairs
from plsc.native.evaluation import verification as kernels
from tests.helpers.kernel_paths import BUILT, two_threads  # noqa: F401

pytestmark = [
    pytest.mark.skipif(not BUILT, reason="the kernels are not built"),
    pytest.mark.usefixtures("two_threads"),
]
X86 = platform.machine() == "x86_64"


def numpys_distances(rows, pairs):
    difference = rows[pairs[:, 0]] - rows[pairs[:, 1]]
    return np.einsum("pd,pd->p", difference, difference)


# 1,100 rows of 512 are three tiles in each direction, too many for 60 pairs.
@pytest.mark.parametrize("rows, width", [(9, 1), (9, 2), (9, 7), (9, 8), (40, 33), (1100, 512)])
@pytest.mark.parametrize("count", [0, 1, 5, 60, 3001])
def test_squared_distances(rows, width, count):
    rng = np.random.default_rng(width)
    pairs = rng.integers(0, rows, (count, 2))
    whole = rng.integers(-9, 9, (rows, width)).astype(np.float64)  # exact in every order
    np.testing.assert_array_equal(kernels.squared_distances(whole, pairs), numpys_distances(whole, pairs))
    drawn = rng.standard_normal((rows, width))
    found, expected = kernels.squared_distances(drawn, pairs), numpys_distances(drawn, pairs)
    # Both add `width` squares, each in its own order. Each addition and each square rounds by half an EPS,
    # twice for the difference in it.
    bound = 0 if X86 else (width + 3) * np.finfo(np.float64).eps * expected
    assert (np.abs(found - expected) <= bound).all()


def test_equal_rows_have_no_distance_and_a_pair_has_one_both_ways_round():
    rows = np.random.default_rng(0).standard_normal((1100, 512))
    rows[700] = rows[3]
    pairs = np.random.default_rng(1).integers(0, 1100, (3001, 2))
    pairs[:3] = [[5, 5], [700, 3], [3, 700]]
    found = kernels.squared_distances(rows, pairs)
    assert not found[:3].any() and (found[pairs[:, 0] != pairs[:, 1]][2:] > 0).all()
    np.testing.assert_array_equal(found, kernels.squared_distances(rows, pairs[:, ::-1]))


@pytest.mark.parametrize("width", [1, 5, 512])
def test_weighted_sums(width):
    rng = np.random.default_rng(width)
    rows = rng.standard_normal((900, width), np.float32)
    order, weight = rng.permutation(900), 1 / rng.integers(1, 4, 900)
    starts = np.array([20, 21, 40, 46, 54, 64, 192, 860])
    expected = np.add.reduceat(rows[order[20:860]] * weight[20:860, None], starts[:-1] - 20, axis=0)
    found = kernels.weighted_sums(rows, order, weight, starts)
    if X86:
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(
        found, expected, rtol=0, atol=900 * np.finfo(np.float64).eps * np.abs(rows).max()
    )


def test_other_arrays_are_refused_and_no_other_memory_is_read():
    rows, pairs = np.ones((4, 8)), np.zeros((3, 2), np.int64)
    for wrong in (rows.astype(np.float32), np.ones((8, 4)).T):
        with pytest.raises(AssertionError):
            kernels.squared_distances(wrong, pairs)
    for wrong in (pairs - 1, pairs + 4, pairs[:, :1]):
        with pytest.raises(AssertionError):
            kernels.squared_distances(rows, wrong)
    order, weight, starts = np.arange(4), np.ones(4), np.array([0, 2, 4])
    wrongs = [
        (rows, order, weight, starts),
        (np.ones((3, 8), np.float32), order, weight, starts),
        (np.ones((4, 8), np.float32), order, weight[:3], starts),
        (np.ones((4, 8), np.float32), order, weight, np.array([0, 2, 5])),
        (np.ones((4, 8), np.float32), order, weight, np.array([0, 2, 2])),
    ]
    for wrong in wrongs:
        with pytest.raises(AssertionError):
            kernels.weighted_sums(*wrong)


def test_templates_and_their_pairs_have_equal_bits_with_and_without_kernels(monkeypatch):
    rng = np.random.default_rng(0)
    template = np.concatenate([np.arange(60), rng.integers(0, 60, 400)])
    embeddings = rng.standard_normal((60, 64))[template] + 3 * rng.standard_normal((460, 64))
    embeddings = embeddings.astype(np.float32)
    pairs = rng.integers(0, 60, (5000, 2))  # many twice and both ways round: ties
    same = pairs[:, 0] % 20 == pairs[:, 1] % 20

    def result():
        features = template_features(embeddings, template, np.arange(460) % 3)
        return features, verify_pairs(features, pairs, same)

    assert kernels.usable()
    features, found = result()
    monkeypatch.setenv("PLSC_KERNELS", "0")
    assert not kernels.usable()
    expected_features, expected = result()
    if not X86:
        pytest.skip("NumPy adds in another order here")
    np.testing.assert_array_equal(features, expected_features)
    np.testing.assert_array_equal(found.similarity, expected.similarity)
    assert found.numbers() == expected.numbers() and found.results() == expected.results()
    assert len(found.roc.far) < 1900
