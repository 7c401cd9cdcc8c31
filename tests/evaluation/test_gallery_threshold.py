"""A gallery's threshold against slow references, drawn strangers, and its user's mistakes."""

import numpy as np
import pytest

from plsc.evaluation.gallery_threshold import GalleryThreshold, choose_evenly, measure
from plsc.evaluation.search import unit_rows

WIDTH = 64


def drawn(rng, people, pictures, spread=0.7):
    """Unit vectors [people, pictures, WIDTH] around each person's own."""
    own = unit_rows(rng.normal(size=(people, WIDTH)))[:, np.newaxis]
    vectors = own + spread * rng.normal(size=(people, pictures, WIDTH)) / WIDTH**0.5
    return unit_rows(vectors.reshape(-1, WIDTH)).reshape(vectors.shape).astype(np.float32)


def measured(people, prior=None, rate=0.01, measures=None):
    """Measure the threshold for people named p0, p1, ..., given as a list of arrays [n, WIDTH]."""
    owners = [f"p{number}" for number, vectors in enumerate(people) for _ in vectors]
    pictures = [f"{number}.jpg" for vectors in people for number, _ in enumerate(vectors)]
    measures = [True] * len(owners) if measures is None else measures
    return measure(np.concatenate(people), owners, pictures, np.array(measures), rate, prior)


def named(people, strangers, cosine):
    """The share of strangers who are nearer than `cosine` to a person's mean."""
    means = unit_rows(np.array([vectors.sum(axis=0) for vectors in people]))
    return np.mean((strangers @ means.T).max(axis=1) > cosine)


@pytest.mark.parametrize("rate", [0.01, 0.05])
@pytest.mark.parametrize("people", [30, 300])
def test_strangers_are_named_as_often_as_was_asked(people, rate):
    """The mean over ten galleries. Each tail is fitted, so some galleries may miss the rate."""
    shares = []
    for seed in range(10):
        rng = np.random.default_rng([people, seed])
        known, strangers = [*drawn(rng, people, 3)], drawn(rng, 4000, 1)[:, 0]
        shares.append(named(known, strangers, measured(known, rate=rate).cosine))
    assert rate / 2 < np.mean(shares) < 2 * rate


def test_the_two_rates_are_those_of_a_slow_reference():
    rng = np.random.default_rng(1)
    known = [vectors[: 1 + number % 3] for number, vectors in enumerate(drawn(rng, 30, 3, spread=1.2))]
    got = measured(known, rate=0.1)
    strangers, found = [], []
    sums = [vectors.astype(np.float64).sum(axis=0) for vectors in known]
    for person, vectors in enumerate(known):
        hits = []
        for vector in vectors.astype(np.float64):
            others = [vector @ other / np.linalg.norm(other) for n, other in enumerate(sums) if n != person]
            strangers.append(max(others) > got.cosine)
            if len(vectors) > 1:
                own = sums[person] - vector
                similarity = vector @ own / np.linalg.norm(own)
                hits.append(similarity > max(got.cosine, *others))
        if hits:
            found.append(np.mean(hits))
    assert got.strangers == np.mean(strangers) > 0 and got.alike == []
    assert got.found == pytest.approx(np.mean(found)) and 0.1 < got.found < 1


@pytest.mark.parametrize("prior", [None, 0.5])
def test_mistakes_do_not_move_the_threshold_and_are_reported(prior):
    for seed in range(5):
        known = [*drawn(np.random.default_rng(seed), 40, 4)]
        clean = [vectors[:3] for vectors in known]
        before = measured(clean, prior)
        assert before.alike == []
        wrong = [*clean]
        for number in range(5):  # p1's folder has a picture of p0, and so on
            wrong[2 * number + 1] = np.append(wrong[2 * number + 1], known[2 * number][3:], axis=0)
        after = measured(wrong, prior)
        assert {*after.alike} == {(f"p{2 * n + 1}/3.jpg", f"p{2 * n}") for n in range(5)}
        assert after.cosine == pytest.approx(before.cosine, abs=0.02)
        assert after.found == pytest.approx(before.found, abs=0.02)
        twice = [*clean, known[7][3:], known[8][2:]]  # under two names, by one picture and by two
        after = measured(twice, prior)
        assert {*after.alike} == {("p40", "p7"), ("p41", "p8")}
        assert after.cosine == pytest.approx(before.cosine, abs=0.02)
        album = [*clean, drawn(np.random.default_rng([9, seed]), 60, 1)[:, 0]]
        assert measured(album, prior).cosine == pytest.approx(before.cosine, abs=0.06)
        assert measured(album, prior).alike == []


def test_a_few_people_have_the_prior_and_there_is_no_jump():
    known = [*drawn(np.random.default_rng(3), 400, 2)]
    cosines = [measured(known[:count], 0.5).cosine for count in range(1, 41)]
    one = 1 - 0.5 * (0.01 * 500) ** (1 / 24)  # one comparison for the 500 of the prior
    assert cosines[0] == pytest.approx(one) and max(np.abs(np.diff(cosines[1:]))) < 0.05
    assert all(measured(known[:count], None).cosine is None for count in range(1, 10))
    assert measured(known[:10], None).cosine is not None


@pytest.mark.parametrize("prior", [-0.5, 0.2, 0.95])
def test_a_prior_that_the_gallery_contradicts_loses_its_weight(prior):
    known = [*drawn(np.random.default_rng(4), 200, 3)]
    assert measured(known, prior).cosine == pytest.approx(measured(known).cosine, abs=0.02)


def test_people_whom_the_network_was_trained_on_do_not_measure():
    known = [*drawn(np.random.default_rng(5), 20, 2)]
    measures = np.arange(40) < 24
    assert measured(known, 0.4, measures=measures).people == 12
    assert measured(known, 0.4, measures=measures).cosine != measured(known, 0.4).cosine
    alone = measured(known, 0.4, measures=np.zeros(40, bool))
    assert alone.cosine == pytest.approx(0.4, abs=0.05) and alone.strangers is None and alone.people == 0
    assert measured(known, 0.4, measures=np.zeros(40, bool)).found > 0.9


def test_a_network_that_cannot_tell_its_people_apart_is_reported():
    one = unit_rows(np.ones((1, WIDTH)))
    alike = unit_rows(one + 0.1 * np.random.default_rng(6).normal(size=(90, WIDTH)) / WIDTH**0.5)
    got = measured([*alike.astype(np.float32).reshape(30, 3, WIDTH)], 0.4)
    assert got.cosine > 0.9 and got.found < 0.5 and got.finds_too_few and got.alike == []
    assert "fewer than half of the enrolled are found" in got.describe()
    dead = measured([np.repeat(one, 3, axis=0).astype(np.float32)] * 12, 0.4)
    assert dead.finds_too_few and dead.cosine <= 1


def test_a_threshold_is_described_in_a_line_and_a_line_for_each_pair():
    threshold = GalleryThreshold(0.01, 0.42, 0.363, 40, 40, 0.008, 0.975, [("Brody/3.jpg", "Gul")])
    assert threshold.describe().splitlines() == [
        "threshold 0.42; strangers named: 0.8% (target 1.0%); enrolled people found: 97.5%",
        "Brody/3.jpg looks like Gul",
    ]
    single = measured([*drawn(np.random.default_rng(7), 12, 1)], 0.4)
    assert single.describe().endswith("enrolled people found: not measured, nobody has two pictures")
    assert measure(np.empty((0, 0), np.float32), [], [], np.empty(0, bool), 0.01, 0.4).cosine == 0.4


def test_everybody_is_chosen_once_before_anybody_twice():
    people = np.array(["b", "a", "a", "a", "c", "b"])
    assert choose_evenly(people, 4).tolist() == [0, 1, 2, 4]
    assert choose_evenly(people, 9).tolist() == list(range(6))
    assert choose_evenly(people[:0], 9).tolist() == []
