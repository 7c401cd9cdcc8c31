"""Verification numbers against slow, obvious loops, and sets that allow only some of them."""

import numpy as np
import pytest

from plsc.evaluation import verify, verify_pairs
from plsc.evaluation.intervals import wilson
from plsc.evaluation.pair_checks import alternating
from plsc.evaluation.roc import roc_curve
from plsc.evaluation.verification import THRESHOLDS, _cells, verify_distances
from tests.helpers.refusals import refusal


def noisy_pairs(pairs, noise=1.2, size=16, seed=0, dtype=np.float32):
    """Pairs of noisy copies. Both come from the same random centre with probability 1/2, in mixed order."""
    rng = np.random.default_rng(seed)
    same = rng.random(pairs) < 0.5
    centre = rng.normal(size=(pairs, size))
    other = np.where(same[:, None], centre, rng.normal(size=(pairs, size)))
    emb_a = centre + noise * rng.normal(size=(pairs, size))
    emb_b = other + noise * rng.normal(size=(pairs, size))
    return emb_a.astype(dtype), emb_b.astype(dtype), same


def slow_ten_fold(emb_a, emb_b, same):
    """LFW's procedure, one pair, fold and threshold at a time: fold accuracies and chosen distances."""
    distance = []
    for a, b in zip(emb_a.astype(np.float64), emb_b.astype(np.float64)):
        distance.append(sum((a / np.linalg.norm(a) - b / np.linalg.norm(b)) ** 2))
    thresholds = [0.01 * k for k in range(400)]

    def right(pairs, threshold):
        return sum((distance[p] < threshold) == same[p] for p in pairs)

    accuracy, chosen = [], []
    for fold in np.array_split(np.arange(len(same)), min(10, len(same))):  # the first folds hold one more
        rest = [p for p in range(len(same)) if p not in fold]
        scores = [right(rest, threshold) for threshold in thresholds]
        best = thresholds[scores.index(max(scores))]
        accuracy.append(right(fold, best) / len(fold))
        chosen.append(best)
    return accuracy, chosen


@pytest.mark.parametrize("pairs", [4, 9, 11, 57])
def test_ten_folds_equal_the_obvious_loop(pairs):
    emb_a, emb_b, same = noisy_pairs(pairs, seed=pairs)
    accuracy, chosen = slow_ten_fold(emb_a, emb_b, same)
    result = verify(emb_a, emb_b, same)
    np.testing.assert_allclose(result.fold_accuracy, accuracy, rtol=0, atol=1e-12)
    assert result.accuracy == pytest.approx(np.mean(accuracy), abs=1e-12)
    variance = np.mean((np.array(accuracy) - np.mean(accuracy)) ** 2)
    assert result.std == pytest.approx(np.sqrt(variance), abs=1e-12)
    chosen_cosine = 1 - np.mean(chosen) / 2
    below = result.similarity[result.similarity <= chosen_cosine]
    above = result.similarity[result.similarity > chosen_cosine]
    if len(below) and len(above):
        chosen_cosine = (below.max() + above.min()) / 2
    assert result.threshold == pytest.approx(chosen_cosine, abs=1e-12)


@pytest.mark.parametrize("lowest_same", [0.909, 0.99999])
def test_the_threshold_is_in_the_middle_of_the_gap_and_decides_the_same(lowest_same):
    rng = np.random.default_rng(0)
    positive, negative = rng.uniform(lowest_same, 1, 50), rng.uniform(0, 0.714, 50)
    positive[0], negative[0] = lowest_same, 0.714
    same = np.arange(100) % 2 == 0
    similarity = np.empty(100)
    similarity[same], similarity[~same] = positive, negative
    result = verify_distances(2 - 2 * similarity, same)
    assert result.threshold == pytest.approx((0.714 + lowest_same) / 2)
    assert (result.accuracy, result.std) == (1, 0)
    rates = result.numbers()["threshold@far"]
    assert rates["0.1"] < 0.714, "it may accept five negatives"


@pytest.mark.parametrize("scale, told", [(0.001, True), (1.0, False)])
def test_cosines_too_near_each_other_for_the_grid_are_reported(scale, told):
    """Of a network at the beginning of its training, whose embeddings are almost the same."""
    same = np.arange(100) % 2 == 0
    distance = scale * (np.where(same, 1.0, 2.0) + np.random.default_rng(0).uniform(0, 0.5, 100))
    result = verify_distances(distance, same)
    assert result.eer == 0 and result.accuracy == (0.5 if told else 1.0)
    assert ("(EER 0.00 %: the cosines are so near each other that" in result.headline) == told


def test_few_pairs_that_are_judged_badly_have_no_such_reason():
    rng = np.random.default_rng(1)
    same = np.arange(10) % 2 == 0
    found = [verify_distances(rng.uniform(0, 2, 10) + 0.5 * ~same, same) for _ in range(50)]
    assert any(1 - each.eer - each.accuracy > 0.1 for each in found)
    assert not any("near each other" in each.headline for each in found)


def test_equal_images_are_not_accepted_at_distance_zero_but_at_the_next_threshold():
    same = np.array([True, False] * 10)
    emb_b = np.where(same[:, None], [1.0, 0.0], [-1.0, 0.0])
    result = verify(np.tile([1.0, 0.0], (20, 1)), emb_b, same)
    assert (result.accuracy, result.std) == (1.0, 0.0)
    assert result.threshold == 0


@pytest.fixture(params=["kernels", "NumPy"])
def way(request, monkeypatch):
    if request.param == "NumPy":
        monkeypatch.setenv("PLSC_KERNELS", "0")


def test_similarity_is_the_cosine_and_large_sets_are_worked_in_blocks(monkeypatch, way):
    emb_a, emb_b, same = noisy_pairs(101)
    wide = emb_a.astype(np.float64), emb_b.astype(np.float64)
    cosine = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(*wide)]
    whole = verify(emb_a, emb_b, same)
    assert whole.similarity.dtype == np.float64
    np.testing.assert_allclose(whole.similarity, cosine, rtol=0, atol=1e-12)
    monkeypatch.setattr("plsc.evaluation.verification.BLOCK_ELEMENTS", 7 * 16)
    np.testing.assert_array_equal(verify(emb_a, emb_b, same).similarity, whole.similarity)


def test_embeddings_in_many_pairs(monkeypatch, way):
    monkeypatch.setattr("plsc.evaluation.verification.BLOCK_ELEMENTS", 7 * 16)
    embeddings, _, _ = noisy_pairs(20)
    embeddings[4] = 0
    before = embeddings.copy()
    pairs = np.random.default_rng(1).integers(0, 20, (300, 2))
    same = pairs[:, 0] % 3 == pairs[:, 1] % 3
    found = verify_pairs(embeddings, pairs, same)
    expected = verify(embeddings[pairs[:, 0]], embeddings[pairs[:, 1]], same)
    np.testing.assert_array_equal(found.similarity, expected.similarity)
    zeros = (pairs == 4).any(axis=1)
    assert not found.similarity[zeros].any() and f"length 0: {zeros.sum()}" in found.notes[-1]
    np.testing.assert_array_equal(embeddings, before)
    embeddings[7] = np.nan
    first = int(np.argmax((pairs == 7).any(axis=1)))
    assert f"an embedding of pair {first} is not finite" in refusal(verify_pairs, embeddings, pairs, same)


def test_the_cell_is_of_the_first_threshold_above_the_distance():
    """On the grid, beside it by one rounding, and beyond both of its ends."""
    beside = [np.nextafter(THRESHOLDS, side) for side in (-np.inf, np.inf)]
    distance = np.concatenate([THRESHOLDS, *beside, [-1, 4, 5], np.random.default_rng(0).uniform(0, 4, 1000)])
    first = np.searchsorted(THRESHOLDS, distance, side="right")
    same = np.arange(len(distance)) % 2 == 0
    np.testing.assert_array_equal(_cells(distance, same, 1), 2 * first + same)


def test_a_set_without_errors_is_not_certain():
    """Wilson's interval for a rate of 1 is not empty."""
    same = np.arange(100) % 2 == 0
    result = verify_distances(np.where(same, 0.5, 2.0), same)
    assert result.accuracy == 1 and result.intervals["accuracy"] == pytest.approx((0.963, 1), abs=1e-3)
    assert result.intervals["eer"] == pytest.approx((0, 0.0714), abs=1e-3)
    assert result.results()["TAR at FAR 0.1"].startswith("100.00 % (92.87 to 100.00), above")


def test_the_table_says_what_the_brackets_are():
    labels = verify(*noisy_pairs(40)).results()
    assert list(labels)[-1] == "in brackets" and "Wilson" in labels["in brackets"]
    embeddings, pairs, same, identity = people_and_pairs()
    known = verify_pairs(embeddings, pairs, same, identity_of=identity)
    assert known.results()["in brackets"].endswith("resamples of 12 identities")
    assert "in brackets" not in verify(np.ones((1, 4)), np.ones((1, 4)), np.array([True])).results()


def test_of_few_people_there_are_no_intervals():
    embeddings, pairs, same, identity = people_and_pairs(people=9)
    result = verify_pairs(embeddings, pairs, same, identity_of=identity)
    assert result.intervals == {} and result.accuracy is not None
    assert result.results()["intervals"] == "need at least 10 identities, these are 9"
    assert "(" not in result.results()["accuracy (mean of folds)"]


def test_pairs_of_one_kind_do_not_lack_people():
    result = verify_pairs(
        np.eye(24), np.arange(24).reshape(-1, 2), np.ones(12, bool), np.repeat(np.arange(12), 2)
    )
    assert result.intervals == {} and "intervals" not in result.results()


def scored(positive, negative):
    """A verification of the given cosines."""
    cosine = np.array([*positive, *negative], dtype=np.float64)
    same = np.arange(len(cosine)) < len(positive)
    return verify_distances(2 - 2 * cosine, same), same


@pytest.mark.parametrize("decimals", [1, 8])  # 1: many equal similarities
def test_roc_and_its_numbers_equal_counting(decimals):
    rng = np.random.default_rng(1)
    positive = np.round(rng.uniform(-0.2, 1, 40), decimals)
    negative = np.round(rng.uniform(-1, 0.5, 60), decimals)
    result, same = scored(positive, negative)
    roc = roc_curve(result.similarity, same)
    for far, tar, threshold in zip(roc.far, roc.tar, roc.threshold):
        assert far == np.mean(result.similarity[~same] >= threshold)
        assert tar == np.mean(result.similarity[same] >= threshold)
    assert len(roc.far) == 1 + len(set(result.similarity))
    wins = sum((p > n) + (p == n) / 2 for p in result.similarity[same] for n in result.similarity[~same])
    assert result.auc == pytest.approx(wins / (40 * 60), abs=1e-12)
    for far in (1e-1, 1e-2):
        below = [tar for f, tar in zip(roc.far, roc.tar) if f <= far]
        assert result.tar_at_far[far] == (max(below) if 60 * far >= 1 else None)
    crossing = [abs(f + t - 1) for f, t in zip(roc.far, roc.tar)]
    assert abs(result.eer - roc.far[int(np.argmin(crossing))]) <= max(
        np.diff(roc.far).max(), np.diff(roc.tar).max()
    )


def test_equal_error_rate_by_hand():
    assert scored([0.9, 0.8, 0.7, 0.2], [0.3, 0.1, 0.0, -0.1])[0].eer == pytest.approx(0.25)
    assert scored([0.9, 0.8], [0.1, 0.0])[0].eer == 0.0
    assert scored([0.5, 0.5], [0.5, 0.5])[0].eer == pytest.approx(0.5)


def test_too_few_negatives_are_reported():
    result, _ = scored(np.linspace(0.5, 1, 500), np.linspace(-1, 0, 999))
    assert result.tar_at_far[1e-2] == 1.0 and result.tar_at_far[1e-3] is None
    assert result.results()["TAR at FAR 0.001"] == "needs at least 1,000 negatives"
    assert sum("needs at least" in text for text in result.results().values()) == 1
    assert result.row()["tar@far=0.001"] is None
    few, _ = scored(np.linspace(0.5, 1, 500), np.linspace(-1, 0, 9))
    assert few.results()["TAR at FAR 0.1"] == "needs at least 10 negatives"
    exactly, _ = scored(np.linspace(0.5, 1, 500), np.linspace(-1, 0, 1000))
    assert exactly.tar_at_far[1e-3] == 1.0


@pytest.mark.parametrize("kind, said", [(True, "the same class"), (False, "different classes")])
def test_one_kind_of_pairs_only(kind, said):
    emb_a, emb_b, _ = noisy_pairs(20)
    result = verify(emb_a, emb_b, np.full(20, kind))
    assert (result.accuracy, result.auc, result.eer, result.roc) == (None,) * 4
    assert set(result.tar_at_far.values()) == {None} and result.headline == "no accuracy: pairs of one kind"
    assert result.notes == [f"No accuracy and no ROC: all pairs are of {said}."]
    assert result.results()["equal error rate"] == "needs positive and negative pairs"


def test_arrays_that_do_not_fit_together_are_refused():
    emb_a, emb_b, same = noisy_pairs(20)
    assert refusal(verify, emb_a, emb_b[:-1], same) == (
        "verify: emb_a, emb_b and same must have one row for each pair, they have 20, 19 and 20"
    )
    signs = np.where(same, 1, -1)
    pair = int(np.argmin(same))
    assert refusal(verify, emb_a, emb_b, signs) == (
        f"verification: same must be True or False for each pair, pair {pair} has -1; if it has 1 and -1, "
        "give same > 0"
    )
    expected = verify(emb_a, emb_b, same)
    for equal in (same.astype(int), same.tolist(), signs > 0):
        assert verify(emb_a, emb_b, equal).numbers() == expected.numbers()
    pairs = np.stack([np.arange(20), np.arange(20, 40)], axis=1)
    said = refusal(verify_pairs, np.concatenate([emb_a, emb_b]), pairs, same[:-1])
    assert said == "verification: there are 20 pairs, but same has 19 values"


@pytest.mark.parametrize("positives", [20, 22])  # at most one of the ten folds would have both kinds
def test_pairs_sorted_by_kind_are_spread_over_the_folds(positives):
    same = np.arange(40) < positives
    distance = np.random.default_rng(0).permutation(np.linspace(0.5, 3, 40))
    order = alternating(same)
    result, spread = verify_distances(distance, same), verify_distances(distance[order], same[order])
    assert 0 < result.accuracy < 1 and result.accuracy == spread.accuracy and result.notes == []
    assert np.array_equal(result.fold_accuracy, spread.fold_accuracy)
    assert result.threshold == spread.threshold


def people_and_pairs(people=12, images=6, seed=0):
    """All pairs of a few people whose images differ in quality from person to person: embeddings, pairs,
    same, identity."""
    rng = np.random.default_rng(seed)
    identity = np.repeat(np.arange(people), images)
    noise = np.repeat(rng.uniform(0.3, 2.0, people), images)[:, None]
    embeddings = rng.normal(size=(people, 16))[identity] + noise * rng.normal(size=(people * images, 16))
    pairs = np.stack(np.triu_indices(len(identity), 1), axis=1)
    same = identity[pairs[:, 0]] == identity[pairs[:, 1]]
    negatives = rng.permutation(np.flatnonzero(~same))[: same.sum()]
    chosen = np.stack([np.flatnonzero(same), negatives], axis=1).ravel()
    return embeddings, pairs[chosen], same[chosen], identity


def test_intervals_over_people_are_those_of_a_slow_bootstrap():
    embeddings, pairs, same, identity = people_and_pairs()
    names = np.array([f"person {k}" for k in range(12)])
    result = verify_pairs(embeddings, pairs, same, identity_of=names[identity])
    rng, found = np.random.default_rng(5), []
    for _ in range(800):
        drawn = rng.integers(0, 12, 12)
        taken = []  # each drawn person's same pairs, each drawn two's different pairs
        for number, first in enumerate(drawn):
            taken += np.flatnonzero(same & (identity[pairs[:, 0]] == first)).tolist()
            for second in drawn[number + 1 :]:
                if first != second:
                    who = np.sort(identity[pairs], axis=1)
                    taken += np.flatnonzero(~same & (who == sorted((first, second))).all(1)).tolist()
        roc = roc_curve(result.similarity[taken], same[taken])
        found.append([roc.far[np.argmin(abs(roc.far + roc.tar - 1))], roc.tar[roc.far <= 0.1][-1]])
    expected = np.quantile(found, [0.025, 0.975], axis=0).T
    got = [result.intervals["eer"], result.intervals["tar@far=0.1"]]
    assert result.numbers()["identities"] == 12
    np.testing.assert_allclose(got[0], expected[0], atol=0.02)
    np.testing.assert_allclose(got[1], expected[1], atol=0.08)  # 12 people: few different rates


def test_resamples_without_a_same_pair_do_not_count_for_the_rates_of_both_kinds():
    embeddings, pairs, same, identity = people_and_pairs()
    kept = ~same | (identity[pairs[:, 0]] == 0)  # the same pairs of one person, who is not in each resample
    result = verify_pairs(embeddings, pairs[kept], same[kept], identity_of=identity)
    low, high = result.intervals["eer"]
    assert low < high and (low, high) != wilson(result.eer, 12)
