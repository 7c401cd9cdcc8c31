"""Galleries in Milvus answer as those in SQLite do."""

import pytest

from plsc import Gallery
from plsc.errors import MissingFileError
from tests.apps.gallery.people import Pixels, people, picture
from tests.helpers.refusals import refusal

pytest.importorskip("pymilvus", reason="the extra milvus is not installed")
pytest.importorskip("milvus_lite", reason="the extra milvus is not installed")


def test_a_gallery_in_milvus_answers_as_one_in_sqlite(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    galleries = [
        Gallery.build(path, people(12), Pixels(trained=["p3"])) for path in ("milvus:a.db", "a.gallery")
    ]
    asked = [picture(f"p{number}", 7) for number in range(12)] + [picture("Zoe")]

    def compare():
        ours, theirs = (gallery.search(asked, top=3) for gallery in galleries)
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.name == other.name
            assert [match.name for match in mine.matches] == [match.name for match in other.matches]
            assert [match.similarity for match in mine.matches] == pytest.approx(
                [match.similarity for match in other.matches], abs=1e-5
            )
        first, second = (gallery.threshold for gallery in galleries)
        assert first.people == second.people
        assert first.cosine == pytest.approx(second.cosine, abs=1e-5)
        assert sorted(galleries[0].people.items()) == sorted(galleries[1].people.items())
        assert galleries[0].pictures_of("p1") == galleries[1].pictures_of("p1")
        assert first.found == second.found and first.strangers == second.strangers
        assert [*map(tuple, first.alike)] == [*map(tuple, second.alike)]

    compare()
    for gallery in galleries:
        gallery.add("Dan", [picture("Dan", number) for number in range(2)])
        gallery.add("p1", [picture("p1", 8)])
        gallery.remove("p2", "p4/the picture (2)")
        assert "Dan" in gallery and "p2" not in gallery and len(gallery) == 12
        assert "has nobody called p2" in refusal(gallery.remove, "p2")
    compare()
    for gallery in galleries:
        gallery.add("p6", [picture("p5", 30)])
        assert [*map(tuple, gallery.threshold.misfiled)] == [("p6", "the picture (4)")]
    compare()
    for gallery in galleries:
        gallery.remove("p6/the picture (4)")
        assert gallery.threshold.misfiled == []
    compare()
    galleries[0].close()
    galleries[0] = Gallery.open("milvus:a.db", Pixels())
    compare()
    assert "milvus:a.db: exists already" in refusal(Gallery.build, "milvus:a.db", people(2), Pixels())
    galleries[0].close()


def test_mistakes_are_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "milvus:none.db: there is no gallery" in refusal(
        Gallery.open, "milvus:none.db", kind=MissingFileError
    )
    for url in ("milvus://host:19530/", "milvus://host:19530/a-b", "milvus:file"):
        assert "must be milvus://host:port/name, or milvus:FILE.db" in refusal(Gallery.open, url)
