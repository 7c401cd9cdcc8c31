"""Galleries that are carried over to another network by a fitted map, without the pictures."""

import numpy as np
import pytest

from plsc import Gallery
from plsc.apps.serving.gallery.mapping import fit_map
from plsc.errors import UserError
from tests.apps.serving.fake_embedder import FakeEmbedder, Turned, pictures, units


@pytest.fixture
def gallery(tmp_path):
    shown = pictures(6)
    people = {"Ann": shown[:2], "Bob": shown[2:3], "Cy": shown[3:]}
    gallery = Gallery.build(tmp_path / "g", FakeEmbedder(), people)
    gallery.add("Dee", FakeEmbedder().embed(pictures(1, seed=7)))
    return gallery


def others(people=40):
    return {f"p{number}": [*pictures(3, seed=100 + number)] for number in range(people)}


@pytest.mark.parametrize("size", [8, 12, 30])
def test_a_map_carries_the_rows_to_another_network(gallery, size):
    old, new = FakeEmbedder(), Turned(size)
    gallery.upgrade_by_map(new, fit_map(old, new, others()))
    opened = Gallery.open(gallery.path)
    opened.check(new)
    for shown, name in [(pictures(6)[:2], "Ann"), (pictures(6)[2:3], "Bob"), (pictures(1, seed=7), "Dee")]:
        match = opened.verify(name, new.embed(shown), threshold=0.9)
        assert match.accepted and match.similarity == pytest.approx(1, abs=1e-3)
    mapped = opened.facts.mapped
    assert (mapped.network, mapped.described) == (old.network, old.described)
    assert (mapped.pictures, mapped.people) == (120, 40) and mapped.cosine > 0.999
    with pytest.raises(UserError, match="of the network the new run"):
        opened.check(old)


def test_a_carried_gallery_has_no_threshold_until_one_is_measured(gallery):
    new = Turned()
    gallery.upgrade_by_map(new, fit_map(FakeEmbedder(), new, others()))
    with pytest.raises(UserError, match="has no threshold.*give a folder of strangers"):
        gallery.search(new.embed(pictures(1)))
    gallery.set_threshold(0.7)
    assert Gallery.open(gallery.path).search(new.embed(pictures(6)[2:3]))[0][0].name == "Bob"


def test_the_cosine_is_of_people_that_the_map_was_not_fitted_on(gallery):
    """Fewer pictures than dimensions fit any noise exactly; the pictures of people left out show that."""
    old = FakeEmbedder()
    few = fit_map(old, Turned(noise=1.0), others(10)).facts
    many = fit_map(old, Turned(noise=1.0), others(200)).facts
    assert 0.3 < few.cosine < many.cosine < 0.9 and few.penalty >= many.penalty
    same = {name: [shown[0]] * 3 for name, shown in others(10).items()}
    assert fit_map(old, Turned(noise=1.0), same).facts.cosine < many.cosine


def test_what_cannot_be_carried_over_is_refused_and_changes_nothing(gallery):
    old, new = FakeEmbedder(), Turned()
    before = gallery.facts, gallery.search(units(5), threshold=0.5)[0][0].name
    with pytest.raises(UserError, match="--map: 9 people have pictures that both networks can use"):
        fit_map(old, new, {**others(9), "black": [np.zeros((1, 6, 5), np.uint8)]})
    with pytest.raises(UserError, match="the map is of other networks than run 0 .* and the new run"):
        gallery.upgrade_by_map(new, fit_map(FakeEmbedder(5), new, others()))
    with pytest.raises(UserError, match="the map is of other networks than run 0 .* and run 5"):
        gallery.upgrade_by_map(FakeEmbedder(5), fit_map(old, new, others()))
    opened = Gallery.open(gallery.path)
    assert (opened.facts, opened.search(units(5), threshold=0.5)[0][0].name) == before
    with pytest.raises(UserError, match="its embeddings are of run 0 .* already; name another network"):
        gallery.upgrade_by_map(old, fit_map(old, old, others()))
    gallery.upgrade_by_map(new, fit_map(old, new, others()))
    with pytest.raises(UserError, match="its rows came by a map from run 0 already"):
        gallery.upgrade_by_map(old, fit_map(new, old, others()))


def test_pictures_take_the_place_of_carried_rows(gallery):
    new = Turned()
    gallery.upgrade_by_map(new, fit_map(FakeEmbedder(), new, others()))
    with pytest.raises(UserError, match="4 of 4 people have no picture"):
        gallery.upgrade(new)  # the same network, but the rows are not its own
    gallery.upgrade(new, {name: pictures(1) for name in gallery.names()})
    assert gallery.facts.mapped is None and gallery.pair_threshold == new.threshold
