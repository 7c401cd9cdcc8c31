"""The blocked search against sorting everything."""

import numpy as np
import pytest

from plsc.evaluation.search import search, unit_rows


def slow(queries, gallery, k):
    queries, gallery = queries.astype(np.float64), gallery.astype(np.float64)
    similarity = np.stack([[q @ g for g in gallery] for q in queries])
    order = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(similarity, order, 1), order


@pytest.mark.parametrize("k", [1, 7, 100])
@pytest.mark.parametrize("queries, block", [(5, 7), (4, 40), (1, 1), (100, 16)])
def test_it_finds_what_sorting_everything_finds(monkeypatch, queries, block, k):
    monkeypatch.setattr("plsc.evaluation.search.QUERIES", queries)
    monkeypatch.setattr("plsc.evaluation.search.GALLERY", block)
    rng = np.random.default_rng(k)
    # Whole numbers: products are exact in any order, and many are equal.
    probes, gallery = (rng.integers(-2, 3, (n, 4)).astype(np.float32) for n in (23, 40))
    score, index = search(probes, gallery, k)
    expected_score, expected_index = slow(probes, gallery, k)
    assert score.dtype == np.float32 and index.dtype == np.int64 and score.shape == (23, min(k, 40))
    np.testing.assert_array_equal(score, expected_score)
    np.testing.assert_array_equal(index, expected_index)


@pytest.mark.parametrize("size", [5, 7, 50, 131, 4100, 8200])
def test_equal_rows_come_in_their_order_however_many_are_asked(size):
    rng = np.random.default_rng(size)
    gallery = unit_rows(rng.standard_normal((size, 128)).astype(np.float32))
    equal = np.sort(rng.choice(size, 5, replace=False))
    gallery[equal] = gallery[equal[0]]
    queries = gallery[[equal[0], 1, 2]]
    for count in (1, 2, 3):
        for k in (1, 2, 3, 5):
            _, index = search(queries[:count], gallery, k)
            np.testing.assert_array_equal(index[0], equal[:k])
