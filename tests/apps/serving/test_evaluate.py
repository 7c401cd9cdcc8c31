"""The evaluation of a gallery: counted by hand on a few directions."""

import numpy as np
import pytest

from plsc import Gallery
from plsc.apps.serving.gallery.evaluate import evaluate
from plsc.errors import UserError
from tests.apps.serving.fake_embedder import FakeEmbedder


def towards(axis, cosine):
    """An embedding with this cosine to one axis, and the rest on the last one, where nobody is."""
    made = np.zeros(8, np.float32)
    made[axis], made[7] = cosine, np.sqrt(1 - cosine**2)
    return made


@pytest.fixture
def gallery(tmp_path):
    rows = np.eye(3, 8, dtype=np.float32)
    made = Gallery.from_embeddings(tmp_path / "g", FakeEmbedder(), ["Ann", "Bob", "Cy"], rows, np.arange(3))
    made.set_threshold(0.5)
    return made


def test_rates_are_counted_at_each_threshold(gallery):
    probes = [
        ("Ann", towards(0, 0.9)),
        ("Ann", towards(0, 0.4)),
        ("Bob", towards(2, 0.8)),
        ("Cy", towards(2, 0.95)),
    ]
    strangers = [(f"s{number}", towards(number % 3, number / 20)) for number in range(20)]
    names, embeddings = zip(*probes, *strangers)
    result = evaluate(gallery, np.stack(embeddings), names)
    numbers = result.numbers()
    assert (numbers["people"], numbers["known"], numbers["strangers"], numbers["rank1"]) == (3, 4, 20, 0.75)
    stored = numbers["thresholds"]["stored"]
    assert stored == {"cosine": 0.5, "known_accepted": 0.5, "strangers_rejected": 11 / 20}
    tenth = numbers["thresholds"]["fpir=0.1"]
    assert tenth["cosine"] == np.float32(0.85) and tenth["known_accepted"] == 0.5
    assert tenth["strangers_rejected"] == 0.9 and "fpir=0.01" not in numbers["thresholds"]
    assert "3 people in the gallery; 4 pictures of them, 20 of strangers" in result.table()
    assert "is not known" not in result.table()
    known = evaluate(gallery, np.stack(embeddings[:1]), names[:1]).table()
    assert "3 people in the gallery; 1 picture of them, 0 of strangers" in known
    assert "whether strangers are rejected is not known: put pictures of people who are not in" in known


def test_an_interval_is_of_people_and_not_of_pictures(gallery):
    """The same picture of each of twenty strangers, ten times, says no more than once."""
    strangers = [(f"s{number}", towards(0, number / 20)) for number in range(20)]
    said = []
    for times in (1, 10):
        names, embeddings = zip(*strangers * times)
        lines = evaluate(gallery, np.stack(embeddings), names).table().splitlines()
        said.append(next(line.split() for line in lines if line.startswith("the gallery's")))
    assert said[0] == said[1] and "55.00" in said[0]
    names, embeddings = zip(*[(f"s{number}", towards(0, 0.1)) for number in range(20)] * 10)
    assert (
        "100.00 % (83.89 to 100.00)" in evaluate(gallery, np.stack(embeddings), names).table()
    )  # Wilson's of 20


def test_the_threshold_for_strangers_can_be_stored(gallery):
    strangers = np.stack([towards(0, number / 20) for number in range(20)])
    result = evaluate(gallery, strangers, ["nobody"] * 20)
    assert result.numbers()["rank1"] is None and "rank-1: -" in result.table()


def test_a_threshold_is_measured_by_strangers(gallery):
    draws = np.random.default_rng(0)
    strangers = np.stack([towards(0, cosine) for cosine in 1 - draws.uniform(0.01, 1, 200) ** 0.25])
    other = Gallery.open(gallery.path)
    gallery.measure_threshold(strangers, np.repeat(np.arange(100), 2), 0.1)
    other.refresh()
    assert other.threshold == gallery.threshold and other.facts.measured.people == 100
    named = np.mean([found[0].accepted for found in other.search(strangers, top=1)])
    assert (
        named == pytest.approx(0.1, abs=0.03) and other.facts.measured.low < named < other.facts.measured.high
    )
    with pytest.raises(UserError, match="9 strangers are too few for a threshold: 10 are needed"):
        gallery.measure_threshold(strangers[:9], range(9))


def test_an_empty_gallery_is_refused(gallery):
    for name in gallery.names():
        gallery.remove(name)
    with pytest.raises(UserError, match="has no people"):
        evaluate(gallery, np.eye(1, 8, dtype=np.float32), ["Ann"])
