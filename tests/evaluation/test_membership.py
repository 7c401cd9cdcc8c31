"""The membership test against slow references, on embeddings of people whom a made-up network knows and does not know."""

import numpy as np
import pytest

from plsc.evaluation.membership import People, alike, auc, nearest
from tests.bounds import assert_within, cosines

RNG = np.random.default_rng(0)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def people(count, images=4, spread=0.5):
    means = np.repeat(RNG.standard_normal((count, 8)), images, axis=0)
    emb = unit(means + spread * RNG.standard_normal(means.shape)).astype(np.float32)
    return People(emb, np.repeat(np.arange(count), images))


def test_nearest_is_the_largest_cosine_whatever_the_blocks():
    some, centres = people(5), RNG.standard_normal((11, 8)).astype(np.float32)
    emb, wide = some.emb_ND.astype(np.float64), centres.astype(np.float64)
    wanted = [max(row @ centre / np.linalg.norm(centre) for centre in wide) for row in emb]
    for cut in (1, 4, 11):
        blocks = [centres[start : start + cut] for start in range(0, 11, cut)]
        assert_within(nearest(some, [*blocks, centres[:0]]), wanted, cosines(8))


def test_alike_is_the_mean_cosine_with_the_others_of_the_person():
    some = people(3)
    some = People(np.concatenate([some.emb_ND, some.emb_ND[:1]]), np.append(some.person_N, 99))
    found, emb = alike(some), some.emb_ND.astype(np.float64)
    for index, (row, person) in enumerate(zip(emb[:-1], some.person_N)):
        others = [other for other in np.flatnonzero(some.person_N == person) if other != index]
        assert found[index] == pytest.approx(np.mean([row @ emb[other] for other in others]))
    assert np.isnan(found[-1])


def test_auc_counts_pairs_and_ties_by_half():
    tested, strangers = np.array([0.1, 0.5, 0.5, 0.9]), np.array([0.5, 0.2, np.nan, 0.8])
    pairs = [(a > b) + 0.5 * (a == b) for a in tested for b in strangers if not np.isnan(b)]
    found = auc(tested, np.array([0, 0, 1, 1]), strangers)
    assert found.value == pytest.approx(np.mean(pairs)) and found.low <= found.value <= found.high
    assert auc(np.full(2, np.nan), np.zeros(2), strangers) is None
    one = auc(tested, np.zeros(4), strangers)  # a single person: over the images
    assert one.low < one.value < one.high
    alone = auc(tested[:1], np.zeros(1), strangers)  # of whom a resample tells nothing
    assert alone.value == alone.low == 0 and 0.5 < alone.high < 1


def test_a_tight_group_is_known_and_one_like_the_strangers_is_not():
    strangers = people(200)
    for spread, least, most in ((0.1, 0.9, 1), (0.5, 0.4, 0.6)):
        tested = people(100, spread=spread)
        assert least <= auc(alike(tested), tested.person_N, alike(strangers)).value <= most
