"""The threshold of a search, against a slow reference and against strangers who are drawn."""

import numpy as np
import pytest

from plsc.apps.gallery.store import SqliteStore
from plsc.apps.gallery.threshold import _held_out, _own_people, measure
from plsc.utils.vectors import unit_rows

WIDTH = 24


def drawn(rng, people, pictures, spread=0.4):
    """Unit vectors [people, pictures, WIDTH] around each person's own."""
    own = unit_rows(rng.normal(size=(people, WIDTH)))[:, np.newaxis]
    vectors = own + spread * rng.normal(size=(people, pictures, WIDTH)) / WIDTH**0.5
    return unit_rows(vectors.reshape(-1, WIDTH)).reshape(vectors.shape).astype(np.float32)


@pytest.fixture
def store_of(tmp_path):
    stores = []

    def store_of(vectors, names=None, strangers=(), measures=None):
        names = names or [f"p{number}" for number in range(len(vectors))]

        def fill(store):
            store.set_facts(network="")
            for number, (name, pictures) in enumerate(zip(names, vectors)):
                store.add(name, pictures, measures=measures is None or measures[number])
            if len(strangers):
                store.set_strangers(strangers, [f"s{number // 2}" for number in range(len(strangers))])

        stores.append(SqliteStore.create(tmp_path / f"{len(stores)}.gallery", fill))
        return stores[-1]

    return store_of


def slow_nearest_others(vectors):
    """For each picture the largest cosine with the mean of another person's pictures, in float64."""
    means = [of_person.astype(np.float64).sum(0) for of_person in vectors]
    found = []
    for person, pictures in enumerate(vectors):
        for picture in pictures:
            others = [mean @ picture / np.linalg.norm(mean) for n, mean in enumerate(means) if n != person]
            found.append(max(others))
    return np.array(found)


def test_own_people_are_searched_without_themselves(store_of):
    vectors = drawn(np.random.default_rng(0), 30, 3)
    evidence = _own_people(store_of(vectors), 0.01)
    slow = np.sort(slow_nearest_others(vectors))[::-1]
    assert evidence.people == 30
    # The tail begins where the slow reference has its 20th largest cosine, the next one being its edge.
    assert 1 - evidence.tail.edge == pytest.approx(slow[20], abs=1e-6)
    assert evidence.tail.share == 20 / 90


def test_people_whom_the_network_was_trained_on_do_not_measure(store_of):
    vectors = drawn(np.random.default_rng(1), 20, 2)
    assert _own_people(store_of(vectors, measures=[number < 12 for number in range(20)]), 0.01).people == 12
    assert _own_people(store_of(vectors, measures=[number < 9 for number in range(20)]), 0.01) is None


def test_held_out_people_who_are_in_the_gallery_do_not_measure(store_of):
    rng = np.random.default_rng(2)
    vectors, strangers = drawn(rng, 5, 2), drawn(rng, 15, 2).reshape(-1, WIDTH)
    assert _held_out(store_of(vectors, strangers=strangers), 0.01).people == 15
    names = ["faces/s3", "p1", "p2", "p3", "p4"]  # one by name, one by a picture
    vectors[1, 0] = vectors[1, 1] = strangers[8]
    assert _held_out(store_of(vectors, names, strangers), 0.01).people == 13
    assert _held_out(store_of(vectors), 0.01) is None


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


def test_others_count_where_they_contradict_the_galleries_own(store_of):
    rng = np.random.default_rng(4)
    vectors = drawn(rng, 60, 2)
    alike = unit_rows(drawn(rng, 30, 2).reshape(-1, WIDTH) + 1.5 * vectors[:30].reshape(-1, WIDTH))
    own = measure(store_of(vectors), 0.01, None)
    both = measure(store_of(vectors, strangers=alike.astype(np.float32)), 0.01, None)
    assert both.by == "held out from training" and both.cosine > own.cosine
