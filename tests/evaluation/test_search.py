"""The blocked search against sorting everything."""

import numpy as np
import pytest

from plsc.evaluation.search import search


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
