"""Galleries in SQLite, without a face network: what is stored, found, changed and refused."""

import os
import re
import shutil
import sqlite3
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest

from plsc import Gallery, cli
from plsc.apps.faces.networks import SFACE, YUNET
from plsc.apps.gallery import verify
from plsc.apps.gallery.answer import Match
from plsc.apps.gallery.gallery import _decide
from plsc.errors import MissingFileError
from plsc.evaluation.gallery_threshold import RATE, GalleryThreshold
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
    assert (
        nobody.reason
        == f"nearest {nearest}, similarity {similarity:.2f}, threshold {again.threshold.cosine:.2f}"
    )
    assert again.search([]) == []
    assert [answer.name for answer in again.search(picture(name, 9) for name in NAMES)] == NAMES
    (nothing,) = again.search(5)
    assert nothing.reason.startswith("int: is not a picture; give a path")


def test_the_constructor_opens_a_gallery(gallery, tmp_path):
    again = Gallery(tmp_path / "a.gallery", Pixels())
    assert [*again] == NAMES and again.search([picture("Bob", 9)])[0].name == "Bob"
    assert repr(again) == f"<Gallery {tmp_path}/a.gallery: 3 people>"
    assert "there is no gallery" in refusal(Gallery, tmp_path / "none", kind=MissingFileError)


def test_two_pictures_show_one_person_or_two():
    same, other = (verify(picture("Ann"), picture(name, 1), Pixels()) for name in ("Ann", "Bob"))
    assert same.same and not other.same and same.similarity > same.threshold == 0.5 > other.similarity
    assert str(same) == f"one person (similarity {same.similarity:.2f}, threshold 0.50)"
    assert str(other) == f"two people (similarity {other.similarity:.2f}, threshold 0.50)"
    alike = [verify(picture("Ann", n), picture("Ann", n), Pixels()).similarity for n in range(30)]
    assert max(alike) == 1.0, "rounding may give more than 1"
    assert "not an image" in refusal(verify, picture("Ann"), b"x", Pixels())
    assert "has no threshold" in refusal(verify, picture("Ann"), picture("Bob"), Pixels(threshold=None))


def test_similarities_are_those_with_the_mean_of_a_persons_pictures(gallery):
    prepared_pictures = gallery.network.embed_pictures(
        [picture("Ann", n) for n in range(2)] + [picture("Zoe")]
    )
    assert not any(prepared.faces for prepared in prepared_pictures)
    embeddings = np.concatenate([prepared.embeddings for prepared in prepared_pictures])
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


def test_a_removed_person_is_in_no_byte_of_the_file_while_others_use_it(tmp_path):
    path = tmp_path / "a.gallery"
    service = Gallery.build(path, people(40), Pixels())
    prepared_pictures = service.network.embed_pictures([picture("p7", n) for n in range(3)])
    parts = [
        vector.astype("<f4").tobytes()[:32]
        for prepared in prepared_pictures
        for vector in prepared.embeddings
    ] + [b"p7"]
    assert all(part in path.read_bytes() for part in parts)
    Gallery.open(path, Pixels()).remove("p7")
    assert not any(part in path.read_bytes() for part in parts) and len(service) == 39
    service.add("p7", [picture("p7", n) for n in range(3)])
    service.remove("p7/the picture", "p7")
    assert not any(part in path.read_bytes() for part in parts)
    assert os.listdir(tmp_path) == ["a.gallery"]


def test_a_picture_with_a_long_name_can_be_removed(gallery, tmp_path):
    (path := tmp_path / f"{'x' * 240}.png").write_bytes(picture("Ann", 7))
    gallery.add("Ann", path)
    gallery.remove(f"Ann/{path.name}")
    assert gallery.people["Ann"] == 2


def test_pictures_have_names_and_are_removed_one_by_one(gallery, tmp_path):
    assert gallery.people == {"Ann": 2, "Bob": 2, "Cy": 2} and gallery.pictures_of("Ann") == [
        "0.png",
        "1.png",
    ]
    more = tmp_path / "more" / "0.png"
    more.parent.mkdir()
    more.write_bytes(picture("Ann", 5))
    gallery.add("Ann", [more, picture("Ann", 6)])
    assert gallery.pictures_of("Ann") == ["0.png", "1.png", "0.png (2)", "the picture"]
    gallery.remove("Ann/0.png", "Ann/the picture", "Bob")
    assert gallery.people == {"Ann": 2, "Cy": 2} and gallery.pictures_of("Ann") == ["1.png", "0.png (2)"]
    assert "has no person or picture Ann/0.png; nothing was changed" in refusal(
        gallery.remove, "Cy", "Ann/0.png"
    )
    assert "has nobody called Bob" in refusal(gallery.pictures_of, "Bob") and len(gallery) == 2
    gallery.remove("Cy/0.png", "Cy/1.png")
    assert gallery.people == {"Ann": 2}


def test_equal_pictures_of_a_person_count_once(gallery, capsys):
    lines = gallery.add("Ann", [picture("Ann", 0), picture("Ann", 7), picture("Ann", 7)])
    assert lines == [
        "the picture: is equal to Ann/0.png, which is stored once",
        "the picture: is equal to Ann/the picture, which is stored once",
    ]
    assert gallery.people["Ann"] == 3 and all(
        f"skipped {line}" in capsys.readouterr().out for line in lines[:1]
    )
    assert len(gallery.add("Ann", picture("Ann", 7))) == 1 and gallery.people["Ann"] == 3


def test_embeddings_without_information_are_skipped(tmp_path):
    class Dead(Pixels):
        def _embed(self, samples):
            rows = super()._embed(samples)
            rows[0], rows[1] = 0, np.nan
            return rows

    gallery = Gallery.build(tmp_path / "a.gallery", {"Ann": [picture("Ann", n) for n in range(3)]}, Dead())
    assert gallery.left_out == [
        "the picture: the network gives zeros for it",
        "the picture: the network gives numbers that are not finite for it",
    ]
    assert gallery.pictures == 1


def test_a_gallery_may_be_copied_replaced_and_restored_while_it_is_open(gallery, tmp_path):
    path, copy, other = (tmp_path / name for name in ("a.gallery", "copy", "other"))
    shutil.copy(path, copy)
    gallery.remove("Bob")
    for end in ("-wal", "-journal", "-shm"):  # of another database that had the name
        (tmp_path / f"a.gallery{end}").write_bytes(b"not of this file" * 100)
    Gallery.build(other, people(2), Pixels()).close()
    os.replace(other, path)
    assert [*gallery] == ["p0", "p1"] and gallery.search([picture("p1")])[0].matches[0].name == "p1"
    os.replace(copy, path)
    assert [*gallery] == NAMES
    gallery.add("Dan", picture("Dan"))
    assert [*Gallery.open(path, Pixels())] == [*NAMES, "Dan"]
    Gallery.build(other, people(2), Pixels("another")).close()
    os.replace(other, path)
    for call in (lambda: gallery.search(picture("Ann")), lambda: gallery.add("Eve", picture("Eve"))):
        assert "its embeddings come from another, and pixels is another network" in refusal(call)
    path.unlink()
    assert "there is no gallery" in refusal(len, gallery, kind=MissingFileError)


def test_rights_stay_and_a_file_that_may_not_be_written_is_not_changed(gallery, tmp_path):
    path = tmp_path / "a.gallery"
    path.chmod(0o640)
    gallery.add("Dan", picture("Dan"))
    gallery.remove("Dan")
    assert path.stat().st_mode & 0o777 == 0o640
    link = tmp_path / "link"
    link.symlink_to("a.gallery")
    Gallery.open(link, Pixels()).add("Dan", picture("Dan"))
    assert link.is_symlink() and len(gallery) == 4


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


def test_pictures_that_cannot_be_used_are_skipped_and_named(tmp_path, capsys):
    folder = folder_of(tmp_path / "people")
    black = tmp_path / "black.png"
    (folder / "Ann" / "text.jpg").write_text("no picture")
    gallery = Gallery.build(tmp_path / "a.gallery", folder, Pixels())
    (line,) = gallery.left_out
    assert "Ann/text.jpg: not an image" in line
    assert f"skipped {line}" in capsys.readouterr().out
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
        ({"": [picture("a")]}, "a name must have 1 to 200"),
        ({"a\nb": [picture("a")]}, r"'a\\nb': a name must have"),
        ({" a": [picture("a")]}, "no space at its ends"),
    ):
        assert re.search(text, refusal(Gallery.build, path, wrong, Pixels()))
    assert "rate: must be between 0 and 0.5, got 0.7" in refusal(
        Gallery.build, path, people(1), Pixels(), rate=0.7
    )
    assert not [*tmp_path.iterdir()]
    slow = Pixels()  # while it embeds, another process is faster
    slow.trained_on = lambda: Gallery.build(path, people(1), Pixels()) and frozenset()
    for network in (slow, Pixels()):
        assert "exists already; remove it first" in refusal(Gallery.build, path, people(2), network)
    assert "none: no such folder" in refusal(
        Gallery.build, tmp_path / "b.gallery", tmp_path / "none", Pixels()
    )


def test_one_name_is_one_person_whatever_its_unicode_form(tmp_path):
    forms = [unicodedata.normalize(form, "Zoë") for form in ("NFC", "NFD")]
    gallery = Gallery.build(
        tmp_path / "a.gallery", {form: picture("Zoë", n) for n, form in enumerate(forms)}, Pixels()
    )
    assert [*gallery] == ["Zoë"] and gallery.pictures == 2
    gallery.remove(forms[1])
    assert len(gallery) == 0


def test_without_the_internet_one_error_names_both_files(tmp_path, monkeypatch):
    monkeypatch.setenv("PLSC_CACHE", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", Mock(side_effect=OSError("no route")))
    line = refusal(Gallery.build, tmp_path / "a.gallery", people(1))
    assert "cannot be downloaded (no route)" in line and f"to {tmp_path}, or set PLSC_CACHE" in line
    assert SFACE.address in line and YUNET.address in line


def test_another_network_is_refused(gallery, tmp_path):
    assert "its embeddings come from pixels, and other is another network" in refusal(
        Gallery.open, tmp_path / "a.gallery", Pixels("other")
    )
    assert re.search(
        r"a.gallery: network none\.onnx: .*; name the gallery's network \(-c or --network, in Python network",
        refusal(Gallery.open(tmp_path / "a.gallery").search, [picture("Ann")]),
    )
    for make in (Gallery.open, partial(Gallery.build, people={})):
        assert (
            "network my.onnx: is not a file; give sface, the path of an ONNX file, or a run (-c RUN, in "
            in refusal(make, tmp_path / f"{'a' if make == Gallery.open else 'b'}.gallery", network="my.onnx")
        )


def test_a_gallery_that_finds_nobody_is_written_and_the_command_says_so(tmp_path, capsys, monkeypatch):
    """No picture looks like another one to this network. The file stays, so that it can be inspected."""
    network = Pixels()
    network._embed = lambda samples: np.float32(
        [np.random.default_rng([*x.tobytes()]).normal(size=16) for x in samples]
    )
    monkeypatch.setattr("plsc.apps.gallery.gallery.open_network", lambda *_, **__: network)
    path, photos = str(tmp_path / "b.gallery"), str(folder_of(tmp_path / "photos"))
    assert cli.main(["gallery", "build", path, photos]) == 1
    last = f"{path} was written; remove it before you build it with another network"
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == last and any("fewer than half of the enrolled are found" in line for line in said)
    assert len(Gallery.open(path, network)) == 3
    assert cli.main(["gallery", "list", path]) == 1 and last not in capsys.readouterr().out


def test_what_is_no_gallery_is_refused(gallery, tmp_path):
    assert "there is no gallery; make one with plsc gallery build" in refusal(
        Gallery.open, tmp_path / "none.gallery", kind=MissingFileError
    )
    (tmp_path / "text").write_text("I am no database" * 100)
    assert "is no file; name one that plsc gallery build wrote" in refusal(Gallery.open, tmp_path)
    assert "is a folder; name the new file of the gallery first" in refusal(
        Gallery.build, tmp_path, people(1), Pixels()
    )
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE a (b)").connection.close()
    assert (
        "not a database; it is not a gallery, or it is damaged: name a gallery, or restore a copy"
        in refusal(Gallery.open, tmp_path / "text")
    )
    assert "is not a gallery; name a file that plsc gallery build wrote" in refusal(
        Gallery.open, tmp_path / "other.db"
    )
    data = (tmp_path / "a.gallery").read_bytes()
    (tmp_path / "cut.gallery").write_bytes(data[: len(data) // 2])
    assert "malformed; it is damaged: restore a copy, or build it again" in refusal(
        lambda: len(Gallery.open(tmp_path / "cut.gallery"))
    )


@pytest.mark.parametrize("top", ["b", 0, -1, 1.5])
def test_wrong_arguments_of_a_search_and_an_add_are_one_line(gallery, top):
    line = f"search: top, the most matches of an answer, must be 1 or more (got {top!r})"
    assert refusal(gallery.search, [picture("Bob")], top) == line
    line = "search: faces must be 'largest' or 'all' (got 'each')"
    assert refusal(gallery.search, [picture("Bob")], faces="each") == line
    assert refusal(gallery.add, "Zoe", []) == "Zoe: nothing was added, since no picture was given"


def test_the_command_takes_folders(gallery, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("plsc.apps.gallery.gallery.open_network", lambda *_, **__: Pixels())
    (tmp_path / "more/deep").mkdir(parents=True)
    (tmp_path / "more/deep/1.png").write_bytes(picture("Bob", 9))
    path = str(tmp_path / "a.gallery")
    assert cli.main(["gallery", "add", path, "Bob", str(tmp_path / "more")]) == 0
    assert "Bob: 1 picture added; 3 people" in capsys.readouterr().out
    assert cli.main(["gallery", "search", path, str(tmp_path / "more")]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path}/more/deep/1.png: Bob (")
    (tmp_path / "empty").mkdir()
    assert cli.main(["gallery", "search", path, str(tmp_path / "empty")]) == 2
    assert "empty: has no images (.jpg, " in capsys.readouterr().err


def test_a_gallery_that_another_process_holds_is_one_line(gallery, tmp_path, monkeypatch):
    monkeypatch.setattr("plsc.apps.gallery.store._WAIT", 0.1)
    waiting = Gallery.open(tmp_path / "a.gallery", Pixels())
    with gallery._store.transaction():
        assert "another process has been writing for 0.1 s; nothing was changed" in refusal(
            waiting.add, "Dan", [picture("Dan")]
        )
        assert len(waiting) == 3  # readers wait for nobody
    waiting.add("Dan", [picture("Dan")])


def test_the_networks_threshold_is_the_start_and_the_gallerys_own_pictures_take_over(tmp_path):
    alone = Gallery.build(tmp_path / "alone.gallery", people(1), Pixels())
    prior = pytest.approx(1 - 0.5 * (0.01 * 500) ** (1 / 24))
    assert alone.threshold.cosine == prior and alone.threshold.rate == RATE and alone.threshold.people == 1
    assert "threshold 0.47; strangers named: not measured (target 1.0%)" in alone.threshold.describe()
    gallery = Gallery.build(tmp_path / "a.gallery", people(9), Pixels())
    before = gallery.threshold
    gallery.add("p9", people(10)["p9"])
    after = gallery.threshold
    assert (before.people, after.people) == (9, 10) and abs(after.cosine - before.cosine) < 0.1
    gallery.add("twin", picture("p3", 7))
    assert gallery.threshold.alike == [["twin", "p3"]]
    assert abs(gallery.threshold.cosine - after.cosine) < 0.1
    assert gallery.search([picture("p4", 5)])[0].name == "p4"
    assert gallery.threshold.describe().endswith("\ntwin looks like p3")
    gallery.remove("twin")
    assert gallery.threshold == after
    gallery.remove(*(f"p{number}" for number in range(1, 10)))
    assert gallery.threshold.cosine == prior
    none = Gallery.build(tmp_path / "b.gallery", people(2), Pixels(threshold=None))
    assert none.threshold.describe().startswith("nobody is named: the network has no threshold")
    assert none.search([picture("p0")])[0].reason.endswith(", no threshold is known")


def test_a_misfiled_picture_does_not_count_for_the_mean_of_its_person(tmp_path):
    gallery = Gallery.build(tmp_path / "a.gallery", people(9), Pixels())
    asked = [picture(f"p{number}", 7) for number in range(9)]
    clean = [answer.matches for answer in gallery.search(asked)]
    gallery.add("p0", [picture("p1", 8)])
    assert gallery.threshold.misfiled == [["p0", "the picture (4)"]] and gallery.people["p0"] == 4
    assert [answer.matches for answer in gallery.search(asked)] == clean
    gallery.add("p0", [picture("p1", 9), picture("p1", 10), picture("p1", 11)])
    assert gallery.threshold.misfiled == []  # most are of p1, so nobody can tell which are right
    assert [answer.matches for answer in gallery.search(asked)] != clean


def test_an_answer_tells_why_a_likely_match_is_not_named():
    face = _decide([Match("Ann", 0.4)], GalleryThreshold(cosine=0.42, prior=0.363, size=40))
    assert face.name is None and face.reason == (
        "nearest Ann, similarity 0.40, threshold 0.42, higher than for two pictures, since a stranger may "
        "resemble any of 40 people"
    )
    assert _decide([Match("Ann", 0.3)], GalleryThreshold(cosine=0.42, prior=0.363, size=40)).reason.endswith(
        "threshold 0.42"
    )


def test_each_build_reports_what_it_skips(tmp_path, capsys):
    """A program may build several galleries from one folder."""
    folder = folder_of(tmp_path / "faces")
    (folder / "note.txt").touch()
    for name in ("a", "b"):
        capsys.readouterr()
        Gallery.build(tmp_path / name, folder, Pixels())
        assert "1 file skipped" in capsys.readouterr().out
