"""Identification against loops over probes, and sets that allow only some of the numbers."""

import numpy as np
import pytest

from plsc.evaluation import identify
from plsc.evaluation.intervals import wilson
from tests.helpers.bounds import assert_within, cosines
from tests.helpers.refusals import refusal


def people(identities=60, images=5, strangers=0.4, noise=1.0, seed=0):
    """Noisy copies of random centres. gallery: two images of some centres. probes: all other images."""
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


def numbers_with_rates(row):
    return {key for key in row if key.startswith(("rank", "tpir"))}


def test_the_numbers_for_files_and_for_people():
    found = identify(*people(identities=120))
    row = found.row()
    assert list(row) == [
        "rank1", "rank5", "rank10", "tpir@fpir=0.01", "tpir@fpir=0.1", "probes", "strangers", "gallery"
    ]  # fmt: skip
    assert all(type(value) in (float, int) for value in row.values())
    low, high = found.intervals["rank1"]
    assert low < row["rank1"] < high and found.intervals.keys() == numbers_with_rates(row)
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
    assert found.results()["TPIR at FPIR 0.1"] == "needs at least 10 probes outside the gallery"
    some = identify(*people(identities=12)).results()
    assert some["TPIR at FPIR 0.01"] == "needs at least 100 probes outside the gallery"
    assert "above" in some["TPIR at FPIR 0.1"]
    few = identify(*people(identities=3, strangers=0))  # a gallery of six
    assert few.ranks[10] == 1


def test_a_zero_embedding_matches_nothing():
    who, gallery, probe = np.array([0, 1, 1, 2]), np.array([0, 1]), np.array([2, 3])
    for others in ([0.0, 1.0], [-1.0, -1.0]):
        found = identify(np.array([[1.0, 0], others, [0, 0], [0, 0]]), gallery, probe, who)
        assert set(found.ranks.values()) == {0} and found.stranger_score.tolist() == [-1]
    # The gallery has only zeros for the right person, and they are more similar than its other image.
    found = identify(np.array([[-1.0, 0], [0, 0], [1, 0], [1, 0]]), gallery, probe, who)
    assert set(found.ranks.values()) == {0}
    nothing = identify(np.zeros((4, 2)), gallery, probe, who)
    assert set(nothing.ranks.values()) == {0}


def test_a_tie_with_another_identity_is_no_hit():
    a, b, c = np.eye(3)
    gallery, probe = np.arange(3), np.array([3])

    def ranks(*images, who=(0, 1, 2, 0)):
        return identify(np.array([*images, a]), gallery, probe, np.array(who)).ranks

    assert ranks(a, b, c) == {1: 1, 5: 1, 10: 1}
    assert ranks(a, a, c) == {1: 0, 5: 1, 10: 1}
    assert ranks(a, a, c, who=(0, 0, 2, 0)) == {1: 1, 5: 1, 10: 1}, "a tie of one person's images"
    many = np.ones((30, 4))
    alike = identify(many, np.arange(20), np.arange(20, 30), np.arange(30) % 10)
    assert alike.ranks == {1: 0, 5: 0, 10: 0}
    for copies in (12, 30):  # more equal pictures of one person than the ranks need
        equal = [*[a] * copies, b, c, a]
        for last, hit in ((0, {1: 1, 5: 1, 10: 1}), (1, {1: 0, 5: 1, 10: 1})):  # whose the last equal one is
            who = np.array([*[0] * (copies - 1), last, 1, 2, 0])
            found = identify(np.array(equal), np.arange(copies + 2), np.array([copies + 2]), who)
            assert found.ranks == hit


def world(seed, people=40, probes=25):
    """One gallery image per person, and probes that are more or less hard to find."""
    rng = np.random.default_rng(seed)
    own = rng.normal(size=(people, 16))
    noise = 0.9 * np.exp(0.6 * rng.normal(size=people))
    images = own[:, None] + noise[:, None, None] * rng.normal(size=(people, probes, 16))
    embeddings = np.concatenate([own + 0.7 * rng.normal(size=own.shape), images.reshape(-1, 16)])
    number = np.arange(people)
    return embeddings, number, np.arange(people, len(embeddings)), np.append(number, number.repeat(probes))


def test_intervals_are_those_of_people():
    """In 0.95 of 200 worlds the interval covers what is true for all people. Wilson's interval over the
    probes covered 0.51."""
    found = [identify(*world(seed)) for seed in range(60)]
    mean = np.mean([one.ranks[1] for one in found])
    covered = np.mean([low <= mean <= high for low, high in (one.intervals["rank1"] for one in found)])
    assert 0.85 <= covered <= 1 and found[0].results()["in brackets"].endswith("of 40 identities")


def test_open_set_intervals_are_those_of_a_slow_bootstrap():
    embeddings, gallery, probe, who = world(0)
    found = identify(embeddings, gallery[::2], probe, who)
    rng, rates = np.random.default_rng(5), []
    mated, others = np.unique(found.person), np.unique(found.stranger)
    people = np.append(mated, others)
    for _ in range(400):
        drawn = rng.choice(people, len(people))
        hits = np.concatenate([found.score[(found.person == one)] for one in drawn])
        places = np.concatenate([found.place[(found.person == one)] for one in drawn])
        strangers = np.sort(np.concatenate([found.stranger_score[found.stranger == one] for one in drawn]))
        rates.append(np.mean((places == 1) & (hits > strangers[::-1][int(len(strangers) * 0.1 + 1e-9)])))
    expected = np.quantile(rates, [0.025, 0.975])
    np.testing.assert_allclose(found.intervals["tpir@fpir=0.1"], expected, atol=0.03)


def test_without_errors_people_are_the_trials_and_few_people_have_no_intervals():
    embeddings = np.eye(12).repeat(3, axis=0)
    who = np.arange(12).repeat(3)
    found = identify(embeddings, np.arange(0, 36, 3), np.flatnonzero(np.arange(36) % 3), who)
    assert found.ranks[1] == 1 and found.intervals["rank1"] == wilson(1.0, 12)
    few = identify(embeddings[:27], np.arange(0, 27, 3), np.flatnonzero(np.arange(27) % 3), who[:27])
    assert few.intervals == {} and few.results()["intervals"] == "need at least 10 identities, these are 9"


@pytest.mark.parametrize(
    "gallery, probe, line",
    [
        (
            [0, 1, 2],
            [3, 2, 1],
            (
                "identification: image 1 is in the gallery and a probe (2 such images); it would find "
                "itself, so remove it from one of the two"
            ),
        ),
        (
            [0, 1],
            [2, 4],
            (
                "identification: the embedding of image 4 is not finite; the network has diverged or the "
                "images are damaged: lower the learning rate, or check the images"
            ),
        ),
    ],
)
def test_mistakes_are_reported_in_one_line(gallery, probe, line):
    embeddings = np.eye(5)
    embeddings[4, 2] = np.nan
    assert refusal(identify, embeddings, np.array(gallery, int), np.array(probe, int), np.arange(5)) == line
