"""The threshold that a gallery measures for itself: by whom, and when again."""

import numpy as np
import pytest

from plsc import Gallery
from plsc.apps.serving.gallery import strangers
from tests.apps.serving.fake_embedder import FakeEmbedder, units

NAMES = [f"p{number}" for number in range(60)]


class Trained(FakeEmbedder):
    """An embedder whose run has classes and held-out people."""

    def __init__(self, classes=(), people=(), embeddings=None):
        super().__init__()
        self._classes = frozenset(classes)
        self._people = [*people]
        self._held_out = units(len(self._people), seed=77) if embeddings is None else embeddings

    def trained_on(self):
        return self._classes

    def held_out(self, most):
        return self._held_out[:most], self._people[:most]


def build(folder, embedder, count=60, pictures=2, seed=0, template="mean"):
    rows = units(count * pictures, seed=seed)
    return Gallery.from_embeddings(
        folder, embedder, NAMES[:count], rows, np.repeat(np.arange(count), pictures), template
    )


@pytest.mark.parametrize("template", ["mean", "images"])
def test_a_gallery_measures_its_threshold_by_its_own_people(tmp_path, template):
    gallery = build(tmp_path / "g", FakeEmbedder(), template=template)
    how = gallery.facts.measured
    assert (how.fpir, how.by, how.people, how.pictures, how.size) == (0.01, strangers.GALLERY, 60, 120, 60)
    found = gallery.search(units(3000, seed=5), top=1)
    named = np.mean([matches[0].accepted for matches in found])
    assert named <= how.high and named < 0.03
    assert "a stranger gets a name in 1 % of the searches" in gallery.describe_threshold()
    opened = Gallery.open(tmp_path / "g")
    assert (opened.threshold, opened.facts.measured) == (gallery.threshold, how)


def test_people_of_the_training_are_not_used(tmp_path):
    gallery = build(tmp_path / "g", Trained([f"faces/{name}" for name in NAMES[:51]]))
    assert gallery.threshold is not None  # a class is known by its last part in the checkpoint already
    trained = Trained(NAMES[:51])
    gallery = build(tmp_path / "h", trained)
    assert gallery.threshold is None and "from pictures of 9 people" in gallery.describe_threshold()
    gallery.add("p3", units(2, seed=9), embedder=trained)
    assert gallery.threshold is None
    gallery.add("new", units(2, seed=9), embedder=trained)
    assert gallery.facts.measured.people == 10


def test_held_out_people_take_their_place_and_are_not_in_the_gallery(tmp_path):
    rows = units(120)
    held_out = np.concatenate([units(40, seed=6), rows[:2]])  # the last two are p0 under another name
    people = ["p7", *(f"q{number}" for number in range(39)), "other", "other"]
    gallery = build(tmp_path / "g", Trained(NAMES, people, held_out))
    assert (gallery.facts.measured.by, gallery.facts.measured.people) == (strangers.HELD_OUT, 39)
    gallery.add("again", held_out[5:6], embedder=Trained(NAMES))  # the picture of one of them
    assert gallery.facts.measured.people == 38
    assert Gallery.open(tmp_path / "g").facts.measured == gallery.facts.measured


def test_what_contradicts_the_others_counts(tmp_path):
    """Held-out people who look like nobody, as photographs of another kind do; and people of the training
    under other names."""
    few = build(tmp_path / "a", FakeEmbedder())
    unlike = np.tile(-units(120).mean(0, keepdims=True), (100, 1)) + 0.01 * units(100, seed=4)
    unlike /= np.linalg.norm(unlike, axis=1, keepdims=True)
    both = build(tmp_path / "b", Trained((), [f"q{number}" for number in range(100)], unlike))
    assert (both.threshold, both.facts.measured.by) == (few.threshold, strangers.GALLERY)
    apart = np.eye(20, 24, dtype=np.float32)
    like = apart[:15] + 0.5 * units(15, size=24, seed=5)
    like /= np.linalg.norm(like, axis=1, keepdims=True)
    seen = Trained((), [f"q{number}" for number in range(15)], like)
    seen.embedding_size = 24
    renamed = Gallery.from_embeddings(tmp_path / "c", seen, NAMES[:20], apart, np.arange(20))
    assert renamed.facts.measured.by == strangers.HELD_OUT


def test_it_is_measured_again_when_people_come_and_go(tmp_path):
    gallery = build(tmp_path / "g", FakeEmbedder(), count=9)
    assert gallery.threshold is None
    gallery.add("Ann", units(2, seed=3))
    first = gallery.facts.measured
    assert (first.people, first.size) == (10, 10)
    for number in range(20):
        gallery.add(f"new {number}", units(2, seed=10 + number))
    assert gallery.facts.measured.size == gallery.facts.measured.people == 30
    other = Gallery.open(tmp_path / "g")
    other.remove("Ann")
    gallery.refresh()
    assert gallery.facts.measured == other.facts.measured and gallery.facts.measured.people == 29
    gallery.remove("new 1")
    assert gallery.facts.measured.people == 28
    same = build(tmp_path / "h", FakeEmbedder(), count=9)
    for number in [0, *range(2, 20)]:
        same.add(f"new {number}", units(2, seed=10 + number))
    assert same.threshold == pytest.approx(gallery.threshold, abs=1e-6)


def test_a_threshold_set_by_hand_stays(tmp_path):
    gallery = build(tmp_path / "g", FakeEmbedder())
    gallery.set_threshold(0.9)
    gallery.add("Ann", units(2, seed=3))
    assert (gallery.threshold, gallery.facts.measured) == (0.9, None)
    assert Gallery.open(tmp_path / "g").describe_threshold() == "threshold 0.9000, set by hand"


def test_strangers_of_the_user_count_alone_and_are_kept(tmp_path):
    gallery = build(tmp_path / "g", FakeEmbedder())
    gallery.measure_threshold(units(200, seed=8), np.repeat(np.arange(100), 2), 0.05)
    how = gallery.facts.measured
    assert (how.fpir, how.by, how.people) == (0.05, strangers.STRANGERS, 100)
    gallery.add("Ann", units(2, seed=3))
    assert (gallery.facts.measured.fpir, gallery.facts.measured.by, gallery.facts.measured.size) == (
        0.05,
        strangers.STRANGERS,
        61,
    )


def test_at_most_a_thousand_pictures_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(strangers, "MOST_PICTURES", 70)
    gallery = build(tmp_path / "g", FakeEmbedder())
    assert (gallery.facts.measured.pictures, gallery.facts.measured.people) == (70, 60)
    gallery.add("Ann", units(2, seed=3))
    assert gallery.facts.measured.pictures == 70


def test_a_large_gallery_is_not_measured_at_each_addition(tmp_path, monkeypatch):
    calls = []
    real = strangers.measured
    monkeypatch.setattr(
        "plsc.apps.serving.gallery.gallery.measured", lambda *args: calls.append(1) or real(*args)
    )
    names = [f"n{number}" for number in range(300)]
    gallery = Gallery.from_embeddings(tmp_path / "g", FakeEmbedder(), names, units(300), np.arange(300))
    for number in range(9):
        gallery.add(f"new {number}", units(1, seed=number))
    assert len(calls) == 1 + 3 and gallery.facts.measured.size == 309
