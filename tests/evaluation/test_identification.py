"""Identification against loops over probes; and the sets that allow only some of the numbers."""

import numpy as np
import pytest

from plsc.evaluation import identify
from plsc.evaluation.intervals import wilson
from tests.helpers.bounds import assert_within, cosines
from tests.helpers.refusals import refusal


def people(identities=60, images=5, strangers=0.4, noise=1.0, seed=0):
    """Noisy copies of random centres; gallery: two images of some; probes: all other images."""
    rng = np.random.default_rng(seed)
    identity = rng.permutation(np.repeat(np.arange(identities), images))
    embeddings = rng.normal(size=(identities, 16))[identity] + noise * rng.normal(size=(len(identity), 16))
    known = rng.random(identities) > strangers
    first = {i: np.flatnonzero(identity == i)[:2] for i in range(identities) if known[i]}
    gallery = np.concatenate(list(first.values()))
    return embeddings, gallery, np.setdiff1d(np.arange(len(identity)), gallery), identity


def slow_identify(embeddings, gallery, probe, identity, fpir):
    """Rank hits (1 to 50) of the mated probes, and TPIR at FPIR."""
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    places, best, strangers = [], [], []
    for p in probe:
        scores = [float(unit[p] @ unit[g]) for g in gallery]
        order = sorted(range(len(gallery)), key=lambda g: -scores[g])
        hits = [rank for rank, g in enumerate(order, start=1) if identity[gallery[g]] == identity[p]]
        if hits:
            places.append(hits[0])
            best.append(scores[order[0]])
        else:
            strangers.append(scores[order[0]])
    allowed = int(len(strangers) * fpir)
    limit = sorted(strangers, reverse=True)[allowed]
    return places, np.mean([place == 1 and score > limit for place, score in zip(places, best)]), limit


def test_ranks_and_rates_equal_the_obvious_loop():
    data = people(identities=120)
    found = identify(*data)
    for fpir in (0.01, 0.1):
        places, tpir, limit = slow_identify(*data, fpir)
        assert found.tpir_at_fpir[fpir] == pytest.approx(tpir, abs=1e-12)
        assert_within(found.threshold_at_fpir[fpir], limit, cosines(16))
    assert found.probes == len(places) and found.probes + found.strangers == len(data[2])
    assert 0.3 < found.ranks[1] < 0.99  # neither trivial nor hopeless
    assert found.ranks == pytest.approx({k: np.mean(np.array(places) <= k) for k in (1, 5, 10)}, abs=1e-12)


def test_the_numbers_for_files_and_for_people():
    found = identify(*people(identities=120))
    row = found.row()
    assert list(row) == [
        "rank1", "rank5", "rank10", "tpir@fpir=0.01", "tpir@fpir=0.1", "probes", "strangers", "gallery"
    ]  # fmt: skip
    assert all(type(value) in (float, int) for value in row.values())
    assert found.intervals["rank1"] == wilson(row["rank1"], found.probes)
    numbers = found.numbers()
    assert set(numbers["threshold@fpir"]) == {"0.01", "0.1"}
    assert found.headline == f"rank-1 {100 * row['rank1']:.2f} %"
    labels = found.results()
    assert labels["rank-1"].startswith(f"{100 * row['rank1']:.2f} % (") and labels["gallery"].endswith(
        " images"
    )
    assert labels["TPIR at FPIR 0.01"].endswith(f"above a cosine of {found.threshold_at_fpir[0.01]:.4f}")


def test_a_closed_set_has_no_open_set_rates():
    found = identify(*people(identities=8, strangers=0))
    assert set(found.tpir_at_fpir.values()) == {None} and found.strangers == 0
    assert found.results()["TPIR at FPIR 0.1"] == "needs at least 10 probes not in it"
    some = identify(*people(identities=12)).results()
    assert some["TPIR at FPIR 0.01"] == "needs at least 100 probes not in it"
    assert "above" in some["TPIR at FPIR 0.1"]
    few = identify(*people(identities=3, strangers=0))  # a gallery of six
    assert few.ranks[10] == 1


def test_a_zero_embedding_resembles_nothing():
    embeddings = np.array([[1.0, 0], [0, 1], [0, 0]])
    assert identify(embeddings, np.array([0, 1]), np.array([2]), np.array([0, 1, 1])).ranks[1] == 0


@pytest.mark.parametrize(
    "gallery, probe, line",
    [
        (
            [0, 1, 2],
            [3, 2, 1],
            (
                "identification: image 1 is in the gallery and a probe (2 such images); it would find "
                "itself, leave it out of one of them"
            ),
        ),
        (
            [0, 1],
            [2, 4],
            (
                "identification: the embedding of image 4 is not finite; the network has diverged or its "
                "images are broken, lower the learning rate or check them"
            ),
        ),
    ],
)
def test_mistakes_are_said_in_one_line(gallery, probe, line):
    embeddings = np.eye(5)
    embeddings[4, 2] = np.nan
    assert refusal(identify, embeddings, np.array(gallery, int), np.array(probe, int), np.arange(5)) == line
