"""The threshold of a search, against a slow reference and against strangers who are drawn."""

import numpy as np
import pytest

from plsc.apps.gallery.store import SqliteStore
from plsc.apps.gallery.threshold import fit_tail, measure
from plsc.evaluation.search import unit_rows

WIDTH = 24


def drawn(rng, people, pictures, spread=0.4):
    """Unit vectors [people, pictures, WIDTH] around each person's own."""
    own = unit_rows(rng.normal(size=(people, WIDTH)))[:, np.newaxis]
    vectors = own + spread * rng.normal(size=(people, pictures, WIDTH)) / WIDTH**0.5
    return unit_rows(vectors.reshape(-1, WIDTH)).reshape(vectors.shape).astype(np.float32)


@pytest.fixture
def store_of(tmp_path):
    stores = []

    def store_of(vectors, measures=None):
        def fill(store):
            for number, pictures in enumerate(vectors):
                store.add(f"p{number}", pictures, measures=measures is None or measures[number])

        stores.append(SqliteStore.create(tmp_path / f"{len(stores)}.gallery", fill))
        return stores[-1]

    return store_of


def slow_nearest_others(vectors):
    """For each picture the largest cosine with the mean of another person's pictures, in float64, and whose
    mean that is."""
    means = [of_person.astype(np.float64).sum(0) for of_person in vectors]
    found = []
    for person, pictures in enumerate(vectors):
        for picture in pictures:
            others = [
                (mean @ picture / np.linalg.norm(mean), n) for n, mean in enumerate(means) if n != person
            ]
            found.append(max(others))
    return map(np.array, zip(*found))


def test_own_people_are_searched_without_themselves(store_of):
    vectors = drawn(np.random.default_rng(0), 30, 3)
    cosines, met = slow_nearest_others(vectors)
    fewer = 1 - 0.99 ** (29 / 30)
    tail = fit_tail(cosines, np.repeat(np.arange(30), 3), met, fewer)
    # The tail begins where the slow reference has its 20th largest cosine, the next one being its edge.
    assert 1 - tail.edge == pytest.approx(np.sort(cosines)[-21], abs=1e-6) and tail.share == 20 / 90
    found = measure(store_of(vectors), 0.01, None)
    assert found.people == 30 and found.cosine == pytest.approx(tail.threshold(fewer), abs=1e-6)


def test_people_whom_the_network_was_trained_on_do_not_measure(store_of):
    vectors = drawn(np.random.default_rng(1), 20, 2)
    for count, people, cosine in ((12, 12, None), (9, 0, 0.4)):
        found = measure(store_of(vectors, measures=[number < count for number in range(20)]), 0.01, 0.4)
        assert found.people == people and cosine in (None, found.cosine)


def test_a_stranger_gets_a_name_as_often_as_was_asked(store_of):
    """Over ten galleries; the tail is fitted, so a part of them may miss the rate, not their mean."""
    named = {0.01: [], 0.05: []}
    for seed in range(10):
        rng = np.random.default_rng([3, seed])
        store = store_of(drawn(rng, 80, 3))
        strangers = drawn(rng, 4000, 1)[:, 0]
        nearest = np.array([matches[0][1] for matches in store.search(strangers, 1)])
        for rate, shares in named.items():
            found = measure(store, rate, None)
            shares.append(np.mean(nearest > found.cosine))
            assert found.low <= rate <= found.high and found.people == 80
    for rate, shares in named.items():
        assert rate / 2 < np.mean(shares) < 2 * rate
