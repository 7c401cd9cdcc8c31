"""Retrieval against loops over queries, and scikit-learn; ties, cameras, and queries without a match."""

import numpy as np
import pytest

from plsc.errors import UserError
from plsc.evaluation import retrieval, retrieve
from plsc.evaluation.intervals import wilson


def products(identities=30, images=6, noise=1.5, seed=0):
    """Noisy copies of random centres, float64; gallery: two thirds of the images; three cameras at random."""
    rng = np.random.default_rng(seed)
    identity = rng.permutation(np.repeat(np.arange(identities), images))
    embeddings = rng.normal(size=(identities, 16))[identity] + noise * rng.normal(size=(len(identity), 16))
    order = rng.permutation(len(identity))
    gallery, query = np.split(order, [2 * len(order) // 3])
    return embeddings, gallery, query, identity, rng.integers(0, 3, len(identity))


def candidates(embeddings, gallery, query, identity, camera):
    """For each query: similarity, rounded as documented, and whether right, of the gallery images that
    count."""
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    for q in query:
        scores, right = [], []
        for g in gallery:
            same = identity[g] == identity[q]
            if g == q or (same and camera is not None and camera[g] == camera[q]):
                continue
            scores.append(round(float(unit[q] @ unit[g]) * 2**20))
            right.append(bool(same))
        yield scores, right


def slow(scores, right):
    """Average precision and the first right rank by counting, for each right image, those at least as
    similar."""
    precisions, ranks = [], []
    for score, is_right in zip(scores, right):
        if is_right:
            above = [r for s, r in zip(scores, right) if s >= score]
            precisions.append(sum(above) / len(above))
            ranks.append(1 + above.count(False))
    return np.mean(precisions), min(ranks)


@pytest.mark.parametrize("cameras", [False, True])
@pytest.mark.parametrize("block", [1, 1000, 2**26])
def test_the_numbers_equal_the_obvious_loop(monkeypatch, cameras, block):
    monkeypatch.setattr(retrieval, "_BLOCK", block)  # one query at a time, some, all
    data = products()
    if not cameras:
        data = (*data[:4], None)
    result = retrieve(*data)
    loops = [slow(*each) for each in candidates(*data) if any(each[1])]
    assert result.left_out == len(data[2]) - len(loops)
    np.testing.assert_allclose(result.average_precision, [ap for ap, _ in loops], atol=1e-12)
    assert result.rank.tolist() == [rank for _, rank in loops]
    assert result.row()["map"] == pytest.approx(np.mean([ap for ap, _ in loops]))
    assert 0.2 < result.row()["map"] < 0.9 and (result.left_out > 0) == cameras
    assert result.recall(5) == result.cmc[4] == np.mean([rank <= 5 for _, rank in loops])


def test_average_precision_is_scikit_learns_with_ties():
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    data = products(seed=3)
    result = retrieve(*data)
    wanted = [
        metrics.average_precision_score(right, scores) for scores, right in candidates(*data) if any(right)
    ]
    np.testing.assert_allclose(result.average_precision, wanted, atol=1e-12)
    rng = np.random.default_rng(1)
    few = np.eye(3)[rng.integers(0, 3, 60)]  # similarities are 0 or 1
    tied = (few, np.arange(40), np.arange(40, 60), rng.integers(0, 4, 60), None)
    wanted = [
        metrics.average_precision_score(right, scores) for scores, right in candidates(*tied) if any(right)
    ]
    np.testing.assert_allclose(retrieve(*tied).average_precision, wanted, atol=1e-12)


def test_embeddings_that_are_all_alike_give_the_share_of_right_images_and_no_recall():
    # In any order of the gallery: else the numbers of a collapsed network would depend on it.
    rng = np.random.default_rng(0)
    one = np.tile(rng.normal(size=(1, 512)).astype(np.float32), (1000, 1))
    identity = np.repeat(np.arange(10), 100)
    result = retrieve(one, rng.permutation(900), np.arange(900, 1000), identity % 3)
    shares = [np.mean((identity % 3)[:900] == (identity % 3)[900])]
    np.testing.assert_allclose(result.average_precision, np.repeat(shares, 100))
    assert result.recall(10) == 0.0 and result.rank.min() == 601


def test_market_1501_by_hand():
    # A query, from camera 0, of identity 7; the gallery from the most similar to the least.
    angles = np.radians([0, 1, 2, 3, 4, 5, 6])
    embeddings = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    identity = np.array([7, 7, 1, 7, 2, 7, 3])
    camera = np.array([0, 0, 0, 1, 1, 2, 0])
    result = retrieve(embeddings, np.arange(1, 7), np.array([0]), identity, camera)
    # Image 1 does not count; right ones are second and fourth of the other five.
    assert result.average_precision.tolist() == [(1 / 2 + 2 / 4) / 2] and result.rank.tolist() == [2]
    without = retrieve(embeddings, np.arange(1, 7), np.array([0]), identity)
    assert without.average_precision.tolist() == [(1 + 2 / 3 + 3 / 5) / 3] and without.rank.tolist() == [1]


def test_an_image_does_not_find_itself():
    embeddings, _, _, identity, _ = products(images=2)
    every = np.arange(len(identity))
    result = retrieve(embeddings, every, every, identity)
    assert result.recall(1) < 0.9 and result.left_out == 0
    alone = retrieve(np.eye(3), np.arange(3), np.arange(3), np.array([0, 1, 1]))
    assert alone.left_out == 1 and len(alone.rank) == 2


def test_queries_without_a_match_are_counted():
    result = retrieve(np.eye(4), np.array([0, 1]), np.array([2, 3]), np.array([0, 1, 2, 3]))
    assert result.row() == {
        "map": None, "recall@1": None, "recall@5": None, "recall@10": None, "queries": 0, "left_out": 2, "gallery": 2,
    }  # fmt: skip
    assert result.headline == "mAP cannot be computed" and result.cmc is None and result.intervals == {}
    assert result.notes == ("No query has a right image in the gallery: no mAP and no recall.",)
    assert result.results()["mAP"] == "needs a query with a match in the gallery"
    assert result.numbers()["cmc"] is None


def test_intervals_are_over_identities():
    data = products(identities=60)
    result = retrieve(*data)
    row = result.row()
    for key in ("map", "recall@1", "recall@5", "recall@10"):
        low, high = result.intervals[key]
        assert low < row[key] < high and high - low < 0.3
    # Ten times the same queries are no further identities, and leave the interval as it was.
    again = retrieve(data[0], data[1], np.tile(data[2], 10), data[3], data[4])
    np.testing.assert_allclose(again.intervals["map"], result.intervals["map"], atol=0.02)
    perfect = retrieve(np.eye(5)[[0, 1, 0, 1]], np.array([2, 3]), np.array([0, 1]), np.array([0, 1, 0, 1]))
    assert perfect.row()["map"] == 1 and perfect.intervals["map"] == wilson(1.0, 2)


def test_the_numbers_for_people():
    result = retrieve(*products())
    assert (
        result.headline == f"mAP {100 * result.row()['map']:.2f} %, recall@1 {100 * result.recall(1):.2f} %"
    )
    labels = result.results()
    assert labels["mAP"].startswith(f"{100 * result.row()['map']:.2f} % (")
    assert labels["gallery"] == "120 images" and labels["queries"].endswith(" identities")


@pytest.mark.parametrize(
    ("gallery", "query", "rule"), [([], [0], "0 gallery images"), ([0], [], "0 query images")]
)
def test_empty_sets_are_refused(gallery, query, rule):
    with pytest.raises(UserError, match=rule):
        retrieve(np.eye(2), np.array(gallery, int), np.array(query, int), np.arange(2))


def test_an_embedding_that_is_not_finite_is_refused():
    embeddings = np.eye(4)
    embeddings[3, 0] = np.nan
    with pytest.raises(UserError, match="retrieval: the embedding of image 3 is not finite"):
        retrieve(embeddings, np.array([0, 1]), np.array([2, 3]), np.array([0, 1, 0, 1]))
