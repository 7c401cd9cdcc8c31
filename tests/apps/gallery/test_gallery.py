"""Galleries in SQLite: what is stored, found, changed and refused; without a network of faces."""

import re
import sqlite3
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from plsc import Gallery
from plsc.apps.gallery import verify
from plsc.apps.gallery.threshold import RATE
from plsc.errors import MissingFileError
from tests.apps.gallery.people import NAMES, Pixels, folder_of, people, picture
from tests.helpers.refusals import refusal


@pytest.fixture
def gallery(tmp_path):
    return Gallery.build(tmp_path / "a.gallery", folder_of(tmp_path / "people"), Pixels())


def test_a_gallery_is_built_opened_and_searched(gallery, tmp_path):
    assert [*gallery] == NAMES and len(gallery) == 3 and gallery.pictures == 6 and not gallery.left_out
    again = Gallery.open(tmp_path / "a.gallery", Pixels())
    (path := tmp_path / "who.png").write_bytes(picture("Bob", 9))
    for asked in ([str(path)], str(path), path, picture("Bob", 9)):
        (answer,) = again.search(asked)
        assert answer.name == answer.matches[0].name == "Bob" and answer.reason == ""
        assert len(answer.matches) == 3 and answer.matches[0].similarity > 0.6
        assert answer.faces == [] and answer.box is None
    (nobody,) = again.search([picture("Zoe")], top=1)
    assert len(nobody.matches) == 1 and nobody.name is None
    nearest, similarity = nobody.matches[0]
    assert nobody.reason == f"nearest {nearest}, {similarity:.2f}; a name needs 0.50"
    assert again.search([]) == []


def test_the_constructor_opens_a_gallery(gallery, tmp_path):
    again = Gallery(tmp_path / "a.gallery", Pixels())
    assert [*again] == NAMES and again.search([picture("Bob", 9)])[0].name == "Bob"
    assert repr(again) == f"<Gallery {tmp_path}/a.gallery>"
    assert "there is no gallery" in refusal(Gallery, tmp_path / "none", kind=MissingFileError)


def test_two_pictures_show_one_person_or_two():
    same, other = (verify(picture("Ann"), picture(name, 1), Pixels()) for name in ("Ann", "Bob"))
    assert same.same and not other.same and same.similarity > same.threshold == 0.5 > other.similarity
    assert str(same) == f"one person ({same.similarity:.2f}; one person needs 0.50)"
    assert str(other) == f"two people ({other.similarity:.2f}; one person needs 0.50)"
    assert "not an image" in refusal(verify, picture("Ann"), b"x", Pixels())
    assert "has no threshold" in refusal(verify, picture("Ann"), picture("Bob"), Pixels(threshold=None))


def test_similarities_are_those_with_the_mean_of_a_persons_pictures(gallery):
    looks = gallery.network.embed_pictures([picture("Ann", n) for n in range(2)] + [picture("Zoe")])
    assert not any(look.faces for look in looks)
    embeddings = np.concatenate([look.embeddings for look in looks])
    mean = embeddings[0] + embeddings[1]
    (answer,) = gallery.nearest(embeddings[2:])
    similarity = next(match.similarity for match in answer.matches if match.name == "Ann")
    assert similarity == pytest.approx(float(mean @ embeddings[2] / np.linalg.norm(mean)), abs=1e-6)


def test_people_are_added_and_removed(gallery):
    assert gallery.add("Dan", [picture("Dan", n) for n in range(2)]) == []
    assert gallery.search([picture("Dan", 5)])[0].name == "Dan" and [*gallery] == [*NAMES, "Dan"]
    assert gallery.add("Dan", picture("Dan", 7)) == [] and gallery.pictures == 9
    gallery.remove("Dan")
    assert "Dan" not in gallery and gallery.pictures == 6
    assert gallery.search([picture("Dan", 5)])[0].name != "Dan"
    assert "has nobody called Dan" in refusal(gallery.remove, "Ann", "Dan")
    assert [*gallery] == NAMES
    gallery.remove(*NAMES)
    assert len(gallery) == 0 and gallery.search([picture("Ann")])[0].reason == "the gallery is empty"
    gallery.add("Ann", [picture("Ann")])
    assert gallery.search([picture("Ann")])[0].name == "Ann"


def test_a_removed_person_is_not_in_the_file(gallery, tmp_path):
    (look,) = gallery.network.embed_pictures([picture("Ann", 0)])
    data = look.embeddings[0].astype("<f4").tobytes()
    contents = [file.read_bytes() for file in tmp_path.glob("a.gallery*")]
    assert any(data in content for content in contents)
    gallery.remove("Ann")
    gallery.close()
    assert not any(data in file.read_bytes() for file in tmp_path.glob("a.gallery*"))


def test_threads_share_a_gallery_from_any_folder(gallery, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gallery = Gallery.open("a.gallery", Pixels())
    monkeypatch.chdir("/")

    def work(number):
        for turn in range(5):
            gallery.add(f"t{number}", [picture(f"t{number}", turn)])
            assert gallery.search([picture(f"t{number}", turn)])[0].name == f"t{number}"

    with ThreadPoolExecutor(4) as threads:
        [*threads.map(work, range(4))]
    assert len(gallery) == 7 and gallery.pictures == 26


def test_pictures_that_cannot_be_used_are_left_out_and_named(tmp_path, capsys):
    folder = folder_of(tmp_path / "people")
    black = tmp_path / "black.png"
    (folder / "Ann" / "text.jpg").write_text("no picture")
    gallery = Gallery.build(tmp_path / "a.gallery", folder, Pixels())
    (line,) = gallery.left_out
    assert "Ann/text.jpg: not an image" in line
    assert f"left out {line}" in capsys.readouterr().out
    black.write_text("")
    left_out = gallery.add("Ann", [picture("Ann", 8), str(black)])
    assert len(left_out) == 1 and left_out[0].startswith(f"{black}: ") and gallery.pictures == 7
    assert refusal(gallery.add, "Eve", [str(black)]).startswith(
        f"Eve: nothing was added: {black}: not an image"
    )
    assert (
        gallery.search([str(black)])[0].reason.startswith("not an image")
        and "black.png: not an image" in capsys.readouterr().out
    )
    assert "Eve" not in gallery


def test_a_build_is_all_or_nothing(tmp_path):
    path = tmp_path / "a.gallery"
    for wrong, text in (
        ({"Ann": [b"x"]}, "no picture can be used$"),
        ({}, "no picture can be used$"),
        ({"": [picture("a")]}, "a name has 1 to 200"),
        ({"a\nb": [picture("a")]}, r"'a\\nb': a name has"),
        ({" a": [picture("a")]}, "no space at its ends"),
    ):
        assert re.search(text, refusal(Gallery.build, path, wrong, Pixels()))
    assert "--rate: must be between 0 and 0.5, got 0.7" in refusal(
        Gallery.build, path, people(1), Pixels(), rate=0.7
    )
    assert not [*tmp_path.iterdir()]
    slow = Pixels()  # while it embeds, another process is faster
    slow.trained_on = lambda: Gallery.build(path, people(1), Pixels()) and frozenset()
    for network in (slow, Pixels()):
        assert "is there already; remove it first" in refusal(Gallery.build, path, people(2), network)
    assert "none: no such folder" in refusal(
        Gallery.build, tmp_path / "b.gallery", tmp_path / "none", Pixels()
    )


def test_leftovers_of_another_gallery_do_not_get_into_a_new_one(tmp_path):
    path = tmp_path / "a.gallery"
    first = Gallery.build(path, people(3), Pixels())
    first.add("Dan", [picture("Dan")])
    journal = (tmp_path / "a.gallery-wal").read_bytes()
    first.close()
    path.unlink()
    for end in ("-wal", ".tmp-wal"):
        (tmp_path / f"a.gallery{end}").write_bytes(journal)
    (tmp_path / "a.gallery.tmp").write_text("of a killed build")
    assert [*Gallery.build(path, people(2), Pixels())] == ["p0", "p1"]
    assert not (tmp_path / "a.gallery.tmp").exists()


def test_one_name_is_one_person_whatever_its_unicode_form(tmp_path):
    forms = [unicodedata.normalize(form, "Zoë") for form in ("NFC", "NFD")]
    gallery = Gallery.build(
        tmp_path / "a.gallery", {form: picture("Zoë", n) for n, form in enumerate(forms)}, Pixels()
    )
    assert [*gallery] == ["Zoë"] and gallery.pictures == 2
    gallery.remove(forms[1])
    assert len(gallery) == 0


def test_another_network_is_refused(gallery, tmp_path):
    assert "its embeddings are of pixels, and other is another network" in refusal(
        Gallery.open, tmp_path / "a.gallery", Pixels("other")
    )
    assert re.search(
        r"a.gallery: --network none\.onnx: .*; name its network by -c",
        refusal(Gallery.open(tmp_path / "a.gallery").search, [picture("Ann")]),
    )
    for make in (Gallery.open, partial(Gallery.build, people={})):
        assert "--network my.onnx: is no file; give sface, the path of an ONNX file, or a run" in refusal(
            make, tmp_path / f"{'a' if make == Gallery.open else 'b'}.gallery", network="my.onnx"
        )


def test_what_is_no_gallery_is_refused(gallery, tmp_path, monkeypatch):
    assert "there is no gallery; make one with plsc gallery build" in refusal(
        Gallery.open, tmp_path / "none.gallery", kind=MissingFileError
    )
    (tmp_path / "text").write_text("I am no database" * 100)
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE a (b)").connection.close()
    assert "not a database; it is damaged" in refusal(Gallery.open, tmp_path / "text")
    assert "is no gallery; name a file that plsc gallery build wrote" in refusal(
        Gallery.open, tmp_path / "other.db"
    )
    gallery.close()
    assert "Cannot operate on a closed database.; nothing was changed" in refusal(len, gallery)
    data = (tmp_path / "a.gallery").read_bytes()
    (tmp_path / "cut.gallery").write_bytes(data[: len(data) // 2])
    assert "malformed; it is damaged: take a copy, or build it again" in refusal(
        lambda: len(Gallery.open(tmp_path / "cut.gallery"))
    )
    monkeypatch.setattr("os.access", lambda *_: False)
    assert "SQLite writes beside what it reads; copy it into another folder" in refusal(
        Gallery.open, tmp_path / "a.gallery"
    )


def test_a_gallery_that_was_built_anew_is_not_mistaken_for_the_one_that_is_open(gallery, tmp_path):
    (tmp_path / "a.gallery").unlink()
    Gallery.build(tmp_path / "a.gallery", people(2), Pixels())
    for call in (lambda: gallery.search(picture("Ann")), lambda: gallery.add("Dan", picture("Dan"))):
        assert "a.gallery: has been replaced; open it again" in refusal(call)


def test_a_gallery_that_another_process_holds_is_one_line(gallery, tmp_path, monkeypatch):
    monkeypatch.setattr("plsc.apps.gallery.store._WAIT", 0.1)
    waiting = Gallery.open(tmp_path / "a.gallery", Pixels())
    holder = sqlite3.connect(tmp_path / "a.gallery", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    assert "database is locked; nothing was changed" in refusal(waiting.add, "Dan", [picture("Dan")])
    assert len(waiting) == 3  # readers wait for nobody
    holder.execute("ROLLBACK")
    waiting.add("Dan", [picture("Dan")])


def test_a_small_gallery_takes_the_networks_threshold_and_a_larger_one_measures(tmp_path):
    gallery = Gallery.build(tmp_path / "a.gallery", people(9), Pixels())
    assert gallery.threshold.cosine == 0.5 and gallery.threshold.rate == RATE
    assert (
        "0.50, the network's threshold for two pictures; 10 people whom it " in gallery.threshold.describe()
    )
    gallery.add("p9", people(10)["p9"])
    measured = gallery.threshold
    assert measured.people == 10 and 0.1 < measured.cosine < 0.9 and measured.low <= 0.01 <= measured.high
    assert measured.describe().startswith(f"a name above {measured.cosine:.2f}: 1.0% of strangers get one (")
    gallery.add("twin", picture("p3"))  # one person under two names: nobody is recognised, and it is said
    assert gallery.search([picture("p3", 5)])[0].name is None
    assert re.search(r"most alike are (p3 and twin|twin and p3) \(1\.00\)", gallery.threshold.describe())
    gallery.remove("twin", "p9")
    assert gallery.threshold.cosine == 0.5
    none = Gallery.build(tmp_path / "b.gallery", people(2), Pixels(threshold=None))
    assert none.threshold.describe().startswith("nobody gets a name")
    assert none.search([picture("p0")])[0].reason.endswith("; no threshold is known")
