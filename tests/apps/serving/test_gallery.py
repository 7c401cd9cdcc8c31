"""Galleries: what they answer, what they refuse, and what two objects of one folder see of each other."""

import contextlib
import os
import sqlite3

import cv2
import numpy as np
import pytest

from plsc import Gallery
from plsc.apps.serving.gallery import index
from plsc.apps.serving.gallery.evaluate import evaluate
from plsc.apps.serving.gallery.pictures import embed_pictures, people_of
from plsc.apps.serving.gallery.store import Source, SqliteStore
from plsc.errors import MissingFileError, UserError
from plsc.utils.calibration import Calibration
from plsc.utils.files import sha256_of
from tests.apps.serving.fake_embedder import FakeEmbedder, pictures, units
from tests.helpers.bounds import assert_within, cosines, perturbed
from tests.helpers.image_files import write_folder

CALIBRATION = Calibration(
    method="logistic", set="demo", step=1, pairs=9, prior=0.5, cosine=[-1.0, 1.0], log_odds=[-4.0, 4.0]
)


def names_of(matches):
    return [match.name for match in matches]


def assert_the_same(found, expected):
    """The same answers, of rows that lie in another order: their products in float64 may differ in the last
    bits."""
    for ours, theirs in zip(found, expected, strict=True):
        assert names_of(ours) == names_of(theirs)
        cosines = [[match.similarity for match in matches] for matches in (ours, theirs)]
        assert_within(*map(np.array, cosines), 2 * 8 * np.finfo(np.float64).eps)


@pytest.fixture
def embedder():
    return FakeEmbedder(calibration=CALIBRATION)


@pytest.fixture
def gallery(tmp_path, embedder):
    shown = pictures(6)
    made = Gallery.build(tmp_path / "g", embedder, {"Ann": shown[:2], "Bob": shown[2:3], "Cy": shown[3:6]})
    made.set_threshold(0.5)
    return made


def test_a_picture_finds_its_person(gallery, embedder):
    (found,) = gallery.search(embedder.embed(pictures(6)[2:3]), top=2)
    assert found[0].name == "Bob" and found[0].accepted
    assert_within(found[0].similarity, 1, cosines(8))
    match = gallery.verify("Bob", embedder.embed(pictures(6)[2:3]))
    assert match.accepted
    assert_within(match.probability, 1 / (1 + np.exp(-4)), cosines(8))  # its slope is at most 4 / 4
    assert len(found) == 2 and found[1].similarity < found[0].similarity
    assert len(gallery) == gallery.rows == 3 and gallery.names() == ["Ann", "Bob", "Cy"]
    assert "Bob" in gallery and "Dan" not in gallery
    assert repr(gallery) == f"<Gallery: 3 people in {gallery.path}>"


def test_a_folder_one_level_too_high_is_pointed_out(tmp_path, caplog):
    faces = write_folder(tmp_path / "up/faces", {"Ann": 2, "Bob": 1})
    assert list(people_of(str(faces))) == ["Ann", "Bob"] and not caplog.messages
    assert list(people_of(str(faces.parent))) == ["faces"]
    assert caplog.messages == [
        (
            f"{faces.parent}: its images lie one level further down, in 2 folders such as faces/Ann; if those are the "
            f"identities, give {faces}"
        )
    ]


def test_a_template_is_the_sum_of_the_embeddings(gallery, embedder):
    expected = embedder.embed(pictures(6)[:2]).sum(axis=0)
    match = gallery.verify("Ann", expected)
    assert match.name == "Ann"
    assert_within(match.similarity, 1, cosines(8))


def test_adding_to_a_template_is_as_if_all_pictures_had_been_there(gallery, embedder, tmp_path):
    more = embedder.embed(pictures(4, seed=1))
    gallery.add("Ann", more[:3])
    gallery.add("Ann", more[3:])
    total = embedder.embed(pictures(6)[:2]).sum(axis=0) + more.sum(axis=0)
    for each in (gallery, Gallery.open(tmp_path / "g")):
        assert_within(each.verify("Ann", total).similarity, 1, cosines(8))
        assert each.rows == 3


def test_with_a_row_for_each_picture_a_person_is_listed_once(tmp_path, embedder):
    shown = pictures(9)
    people = {"Ann": shown[:4], "Bob": shown[4:6], "Cy": shown[6:]}
    gallery = Gallery.build(tmp_path / "g", embedder, people, template="images")
    matches = gallery.search(embedder.embed(shown), top=3, threshold=0.5)
    assert [names_of(found)[0] for found in matches] == ["Ann"] * 4 + ["Bob"] * 2 + ["Cy"] * 3
    assert all(sorted(names_of(found)) == ["Ann", "Bob", "Cy"] for found in matches) and gallery.rows == 9


def test_strangers_are_not_accepted_at_the_threshold(gallery, embedder):
    (found,) = gallery.search(embedder.embed(pictures(1, seed=9)), top=1, threshold=0.9999)
    assert not found[0].accepted
    (found,) = gallery.search(embedder.embed(pictures(1, seed=9)), top=3, threshold=-1.0)
    assert [match.accepted for match in found] == [True, False, False]  # a picture shows one person


def test_without_a_threshold_it_says_what_to_do(tmp_path):
    embedder = FakeEmbedder(threshold=None)
    gallery = Gallery.build(tmp_path / "g", embedder, {"Ann": pictures(1)})
    with pytest.raises(
        UserError, match="has no threshold.* 1 person .*10 are needed; give a folder of strangers"
    ):
        gallery.search(units(1))
    with pytest.raises(UserError, match="no threshold for pairs.*give one with --threshold, or store one"):
        gallery.verify("Ann", units(1))
    assert gallery.verify("Ann", units(1), threshold=0.2).probability is None
    gallery.upgrade(FakeEmbedder(threshold=0.25))
    assert gallery.pair_threshold == 0.25 and gallery.threshold is None
    gallery.set_threshold(0.3)
    assert gallery.search(units(1)) == gallery.search(units(1), threshold=0.3)


@pytest.mark.parametrize("template", ["mean", "images"])
def test_the_answers_are_those_of_brute_force_after_any_changes(tmp_path, embedder, template):
    """Against a dictionary of float64 rows, through additions, removals and reopening."""
    draws = np.random.default_rng(4)
    owners = np.repeat(np.arange(30), draws.integers(1, 4, 30))
    rows = units(len(owners), seed=1)
    names = [f"p{number}" for number in range(30)]
    gallery = Gallery.from_embeddings(tmp_path / "g", embedder, names, rows, owners, template)
    known = {name: rows[owners == number] for number, name in enumerate(names)}
    for turn in range(40):
        name = f"p{draws.integers(0, 40)}"
        if name in known and turn % 2:
            gallery.remove(name)
            del known[name]
        else:
            more = units(int(draws.integers(1, 3)), seed=100 + turn)
            gallery.add(name, more)
            known[name] = np.concatenate([known[name], more]) if name in known else more
    queries = units(20, seed=2)

    def brute_force(query, *rows):
        return np.array([_cosine(own, query, template) for own in rows])

    for each in (gallery, Gallery.open(tmp_path / "g")):
        for query, found in zip(queries, each.search(queries, top=7)):
            want, bound = perturbed(brute_force, query, *known.values())
            best = np.argsort(-want)[:8]
            assert -np.diff(want[best]).max() > 2 * bound.max(), "no rounding may change the order"
            assert names_of(found) == [[*known][number] for number in best[:7]]
            assert_within(np.array([match.similarity for match in found]), want[best[:7]], bound.max())
        assert len(each) == len(known) and set(each.names()) == set(known)


def _cosine(rows, query, template):
    rows = rows.astype(np.float64)
    if template == "images":
        return float(np.max(rows @ query))
    total = rows.sum(axis=0)
    return float(total @ query / np.linalg.norm(total))


def test_top_is_cut_to_the_people_and_an_empty_gallery_answers_nobody(gallery, embedder):
    assert len(gallery.search(units(1), top=50)[0]) == 3
    for name in gallery.names():
        gallery.remove(name)
    assert gallery.search(units(2)) == [[], []] and len(gallery) == 0
    gallery.add("Dee", units(1))
    assert names_of(gallery.search(units(1))[0]) == ["Dee"]


def test_another_network_is_refused_with_both_names(gallery):
    with pytest.raises(UserError, match=r"of the network run 0 \(0{12}\), these are of run 1"):
        gallery.check(FakeEmbedder(seed=1))
    with pytest.raises(
        UserError, match="of the image alone, those of run 0 .* are of image and mirror image"
    ):
        gallery.check(FakeEmbedder(flip=True))
    gallery.check(FakeEmbedder())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda gallery: gallery.add("Ann", units(1, size=9)), r"must be float32 \[n, 8\], got \[1, 9\]"),
        (lambda gallery: gallery.add("Ann", np.zeros((1, 8))), "must be finite and not all zeros"),
        (lambda gallery: gallery.add("Ann", np.full((1, 8), np.nan)), "must be finite and not all zeros"),
        (lambda gallery: gallery.add("", units(1)), "needs a name"),
        (lambda gallery: gallery.add(5, units(1)), "needs a name"),
        (lambda gallery: gallery.add("Ann", units(0)), "needs at least one picture or embedding"),
        (lambda gallery: gallery.add("Ann", units(1), meta={"x": np.nan}), "meta: must be a JSON value"),
        (lambda gallery: gallery.add("Ann", units(1), meta="\ud800"), "meta: must be a JSON value"),
        (lambda gallery: gallery.add("Ann", units(1), meta={1, 2}), "meta: must be a JSON value"),
        (
            lambda gallery: gallery.search(units(1), threshold=np.nan),
            "must be a cosine from -1 to 1, got nan",
        ),
        (lambda gallery: gallery.remove("Dee\n"), r"has nobody named 'Dee\\n'"),
        (lambda gallery: gallery.verify("Dee", units(1)), "has nobody named 'Dee'"),
        (lambda gallery: gallery.search(units(1), top=0), "top: must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(gallery, change, message):
    with pytest.raises(UserError, match=message):
        change(gallery)
    assert Gallery.open(gallery.path).names() == gallery.names() == ["Ann", "Bob", "Cy"]


def test_others_see_a_change_at_once(gallery):
    other = Gallery.open(gallery.path)
    gallery.add("Dee", units(1, seed=4))
    assert other.names() == [*other] == ["Ann", "Bob", "Cy", "Dee"] and len(other) == other.rows == 4
    assert other.search(units(1, seed=4))[0][0].name == "Dee"
    other.remove("Ann")
    gallery.add("Eve", units(1))
    assert gallery.names() == ["Bob", "Cy", "Dee", "Eve"]
    other.set_threshold(0.7)
    assert gallery.threshold == 0.7


def test_removing_finds_whom_others_have_added_and_removed(gallery):
    other = Gallery.open(gallery.path)
    other.add("Dee", units(1))
    other.remove("Ann")
    with pytest.raises(UserError, match="has nobody named 'Ann'"):
        gallery.remove("Dee", "Ann")
    assert gallery.names() == ["Bob", "Cy", "Dee"]
    assert gallery.remove("Dee", "Dee") == [{"name": "Dee", "pictures": [], "rows": 1}]
    assert gallery.names() == Gallery.open(gallery.path).names() == ["Bob", "Cy"]


@pytest.mark.parametrize("template", ["mean", "images"])
def test_a_large_gallery_has_an_index_beside_it(tmp_path, embedder, monkeypatch, template):
    """It is written, is not needed, and never has anybody who was removed."""
    monkeypatch.setattr(index, "FILE_ROWS", 40)
    file = tmp_path / "g.index"
    rows, owners = units(60), np.repeat(np.arange(30), 2)
    names = [f"p{number}" for number in owners[::2]]
    gallery = Gallery.from_embeddings(tmp_path / "g", embedder, names, rows, owners, template)
    assert file.exists() == (template == "images")
    other = Gallery.open(gallery.path)
    more = units(40, seed=3)
    for number, row in enumerate(more):
        gallery.add(f"q{number}", row[None], collection="c" if number % 2 else "")
    gallery.add("p3", units(1, seed=9))
    gallery.remove("p4")
    assert file.exists()
    written = file.read_bytes()
    if template == "images":
        assert rows[8].tobytes() not in written and more[3].tobytes() in written
    gallery.add("last", units(1, seed=8))
    expected = gallery.search(units(20, seed=5), top=70, threshold=0.5)
    for _ in range(2):
        opened = Gallery.open(gallery.path)
        for each in (opened, other):
            assert_the_same(each.search(units(20, seed=5), top=70, threshold=0.5), expected)
            assert len(each) == len(gallery) == 70
        file.unlink()
    Gallery.open(gallery.path)
    file.write_bytes(file.read_bytes()[:-1])
    assert_the_same(Gallery.open(gallery.path).search(units(20, seed=5), top=70, threshold=0.5), expected)


def test_an_index_that_is_replaced_while_it_is_read_is_not_taken(tmp_path, embedder, monkeypatch):
    """Half of it would be of the one, half of the other."""
    monkeypatch.setattr(index, "FILE_ROWS", 4)
    made = Gallery.from_embeddings(tmp_path / "g", embedder, list("abcdef"), units(6), np.arange(6))
    path, read = tmp_path / "g.index", index.TensorFile.read
    assert index.Index.of_file(path, 8, "mean") is not None

    def replaced(self, name):
        if name == "owners 0":
            made._index.save(path, made._revision)
        return read(self, name)

    monkeypatch.setattr(index.TensorFile, "read", replaced)
    assert index.Index.of_file(path, 8, "mean") is None


def test_an_index_of_a_gallery_that_was_deleted_does_not_stay(tmp_path, embedder):
    (tmp_path / "g.index").write_bytes(b"rows of somebody")
    Gallery.build(tmp_path / "g", embedder, {"Ann": pictures(1)})
    assert not (tmp_path / "g.index").exists()


def test_an_index_of_another_gallery_is_not_taken(tmp_path, embedder, monkeypatch):
    """Of a backup, too, which has counted on from the same revision since."""
    monkeypatch.setattr(index, "FILE_ROWS", 4)
    made = Gallery.from_embeddings(tmp_path / "g", embedder, list("abcdef"), units(6), np.arange(6))
    made.backup(tmp_path / "copy")
    made.remove("a")
    made.add("g", units(1, seed=7))
    restored = Gallery.open(tmp_path / "copy")
    for number in range(20):
        restored.add(f"new {number}", units(1, seed=20 + number))
    restored.close()
    made.close()
    (tmp_path / "copy.index").unlink(missing_ok=True)
    (tmp_path / "copy").rename(tmp_path / "g")
    opened = Gallery.open(tmp_path / "g")
    assert opened.search(units(1))[0][0].name == "a" and len(opened) == 26
    assert opened.search(units(1, seed=7), threshold=0.999)[0][0].accepted is False


def test_people_have_metadata_and_a_collection(gallery, embedder):
    gallery.add("Dee", units(1, seed=4), collection="guests", meta={"id": 7})
    gallery.add("Dee", units(1, seed=5))
    gallery.add("Ann", units(1, seed=6), meta=[1, None])
    for each in (gallery, Gallery.open(gallery.path)):
        found = {person.name: (person.collection, person.meta) for person in each.people()}
        assert found["Dee"] == ("guests", {"id": 7}) and found["Ann"] == ("", [1, None])
        everywhere = each.search(units(3, seed=5), top=9)
        assert all(len(matches) == 4 for matches in everywhere) and everywhere[0][0].meta == {"id": 7}
        assert [names_of(matches) for matches in each.search(units(3), collection="guests")] == [["Dee"]] * 3
        inside = [[match for match in matches if match.name != "Dee"] for matches in everywhere]
        only = each.search(units(3, seed=5), top=9, collection="", threshold=-1.0)
        assert [[match[:2] for match in matches] for matches in only] == [
            [match[:2] for match in matches] for matches in inside
        ]
        with pytest.raises(UserError, match="has no collection 'staff'"):
            each.search(units(1), collection="staff")
    with pytest.raises(UserError, match="'Dee': is in the collection 'guests', not 'staff'; remove"):
        gallery.add("Dee", units(1), collection="staff")
    assert gallery.verify("Dee", units(1, seed=4)).accepted


def test_quality_and_alignment_are_kept(gallery):
    sources = [Source("a.jpg", "00", {"blur": 0.5}, True), Source("b.jpg", aligned=False)]
    gallery.add("Dee", units(2), sources)
    store = SqliteStore(gallery.path)
    with store.snapshot():
        assert store.sources([store.find("Dee").id]) == sources


def test_pictures_are_named_by_their_paths(tmp_path, embedder, monkeypatch):
    paths = []
    for number, picture in enumerate(pictures(4)):
        paths.append(str(tmp_path / f"{number}.png"))
        cv2.imwrite(paths[-1], picture[0])
    made = Gallery.build(tmp_path / "g", embedder, {"Ann": paths[:1], "Bob": paths[1:2]})
    made.set_threshold(0.99)
    opened = Gallery.open(tmp_path / "g", embedder)
    opened.add("Cy", paths[2:])
    opened.add("Dee", pictures(1, seed=5))
    for asked in (paths[0], paths[:1], [tmp_path / "0.png"], pictures(4)[0], embedder.embed(pictures(4)[:1])):
        assert opened.search(asked)[0][0].name == "Ann"
    assert opened.verify("Cy", paths[2:]).accepted and opened.search(pictures(1, seed=5))[0][0].name == "Dee"
    assert opened.sources("Cy") == paths[2:]
    with opened._reading():
        (source, _) = opened._store.sources([opened._store.find("Cy").id])
    assert source.sha256 == sha256_of(paths[2])
    with pytest.raises(UserError, match="none.png: no such image"):
        opened.search(["none.png"])
    with pytest.raises(UserError, match="does not say where its network is"):
        Gallery.open(tmp_path / "g").search(paths)
    with pytest.raises(UserError, match="of the network run 0 .* these are of run 1"):
        Gallery.open(tmp_path / "g", FakeEmbedder(seed=1))


def test_upgrade_embeds_the_recorded_pictures_by_another_network(tmp_path, embedder):
    folder = tmp_path / "people"
    for number, picture in enumerate(pictures(4)):
        (folder / f"p{number % 2}").mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / f"p{number % 2}" / f"{number}.png"), picture[0])
    gallery = Gallery.build(tmp_path / "g", embedder, people_of(str(folder)))
    gallery.remove("p1")
    new = FakeEmbedder(seed=1, size=12, threshold=0.3)
    gallery.upgrade(new)
    again = Gallery.open(tmp_path / "g")
    again.check(new)
    assert again.pair_threshold == 0.3 and again.names() == ["p0"]
    assert_within(again.verify("p0", new.embed(pictures(4)[::2])).similarity, 1, cosines(12))
    (folder / "p0" / "0.png").unlink()
    (folder / "p0" / "2.png").unlink()
    with pytest.raises(UserError, match="1 of 1 people have no picture that can be used, such as 'p0'"):
        again.upgrade(embedder)
    Gallery.open(tmp_path / "g").check(new)


def test_an_upgrade_keeps_what_is_known_of_files_that_are_as_they_were(tmp_path, embedder):
    paths = [str(tmp_path / f"{number}.png") for number in range(2)]
    for path, picture in zip(paths, pictures(2)):
        cv2.imwrite(path, picture[0])
    gallery = Gallery.build(tmp_path / "g", embedder, {"Ann": pictures(1, seed=3)})
    gallery.add("Bob", paths, [Source(path, sha256_of(path), {"width": 8}, True) for path in paths])
    cv2.imwrite(paths[1], pictures(3)[2, 0])
    gallery.upgrade(FakeEmbedder(seed=1), {"Ann": pictures(1, seed=3), "Bob": paths})
    assert [source.aligned for source in gallery.enrolled()[1]] == [None, True, None]


def test_upgrade_by_pictures_that_are_given(gallery):
    new, shown = FakeEmbedder(seed=1), pictures(3, seed=5)
    with pytest.raises(UserError, match="3 of 3 people have no picture"):
        gallery.upgrade(new)
    gallery.upgrade(
        new, {name: shown[number : number + 1] for number, name in enumerate(["Cy", "Ann", "Bob"])}
    )
    matches = gallery.search(new.embed(shown), top=1, threshold=0.5)
    assert [names_of(found) for found in matches] == [["Cy"], ["Ann"], ["Bob"]]


def test_pictures_that_cannot_be_used_are_listed(tmp_path, embedder):
    folder = tmp_path / "people"
    for name in ("Ann", "Bob"):
        (folder / name).mkdir(parents=True)
        cv2.imwrite(str(folder / name / "good.png"), pictures(1)[0, 0])
    (folder / "Ann" / "cut.png").write_bytes((folder / "Ann" / "good.png").read_bytes()[:40])
    (folder / "Ann" / "empty.jpg").write_bytes(b"")
    (folder / "Bob" / "good.png").write_bytes(b"no picture")
    cv2.imwrite(str(folder / "Ann" / "black.png"), np.zeros((6, 5), np.uint8))
    gallery = Gallery.build(tmp_path / "g", embedder, people_of(str(folder)))
    assert gallery.names() == ["Ann"] and gallery.sources("Ann") == [str(folder / "Ann" / "good.png")]
    left = sorted((each.name, each.reason.split(":")[0]) for each in gallery.left_out)
    assert left == [
        ("Ann", str(folder / "Ann" / "black.png")),
        ("Ann", str(folder / "Ann" / "cut.png")),
        ("Ann", str(folder / "Ann" / "empty.jpg")),
        ("Bob", str(folder / "Bob" / "good.png")),
    ]
    with pytest.raises(UserError, match="no picture can be used"):
        Gallery.build(tmp_path / "h", embedder, {"Bob": [str(folder / "Bob" / "good.png")]})
    assert not (tmp_path / "h").exists()


def test_pictures_that_are_stretched_much_are_warned_of(tmp_path, embedder, capsys):
    wide, good = str(tmp_path / "wide.png"), str(tmp_path / "good.png")
    cv2.imwrite(wide, np.full((6, 9), 200, np.uint8))
    cv2.imwrite(good, pictures(1)[0, 0])
    _, kept, _ = embed_pictures(embedder, [good, wide], ["Ann", "Ann"])
    said = capsys.readouterr().out
    assert len(kept) == 2
    assert f"stretched to the network's 5 x 6 pixels: 1 of 2 pictures, such as {wide} (9 x 6);" in said
    embed_pictures(embedder, [good], ["Ann"])
    assert "stretched" not in capsys.readouterr().out


def test_arrays_that_are_no_samples_are_listed(tmp_path, embedder):
    wrong = [pictures(1)[0].astype(np.float32), pictures(1)[0, :, :3]]
    gallery = Gallery.build(tmp_path / "g", embedder, {"Ann": [*pictures(1), *wrong]})
    assert [each.reason.split(":")[0] for each in gallery.left_out] == ["an array", "an array"]
    with pytest.raises(UserError, match="there are no pictures"):
        Gallery.build(tmp_path / "h", embedder, {})
    with pytest.raises(UserError, match="needs a name"):
        Gallery.build(tmp_path / "h", embedder, {7: pictures(1)})


@pytest.mark.parametrize(
    ("names", "owners"), [(["a", "a"], [0, 1]), (["a", "b"], [1, 0]), (["a", "b"], [0, 0]), (["a"], [0, 1])]
)
def test_embeddings_that_belong_to_nobody_are_refused(tmp_path, embedder, names, owners):
    with pytest.raises(UserError, match="names: must be different, and owners number them"):
        Gallery.from_embeddings(tmp_path / "g", embedder, names, units(2), np.array(owners))


def test_many_pictures_of_a_person_leave_room_for_the_others(tmp_path, embedder):
    """The nearest rows are all of one person."""
    rows = np.concatenate([np.repeat(units(1), 60, axis=0), units(3, seed=1)])
    owners = np.array([0] * 60 + [1, 2, 3])
    gallery = Gallery.from_embeddings(tmp_path / "g", embedder, list("abcd"), rows, owners, "images")
    for found in gallery.search(np.repeat(units(1), 7, axis=0), top=4, threshold=0.5):
        assert found[0].name == "a" and sorted(names_of(found)) == list("abcd")


def test_a_build_that_was_killed_is_named_before_the_work_begins(tmp_path, embedder):
    (tmp_path / "g.tmp").touch()
    with pytest.raises(UserError, match=r"g\.tmp: exists already; remove it"):
        Gallery.build(tmp_path / "g", embedder, {"Ann": pictures(1)})


def test_nothing_is_overwritten(gallery, embedder, tmp_path):
    with pytest.raises(UserError, match="exists already"):
        Gallery.build(gallery.path, embedder, {"Ann": pictures(1)})
    with pytest.raises(MissingFileError, match="nothing: is no gallery, there is nothing; make one"):
        Gallery.open(tmp_path / "nothing")
    with pytest.raises(UserError, match="is a folder, as galleries were once; now they are files: build it"):
        Gallery.open(tmp_path)
    (tmp_path / "text").write_text("no gallery" * 1000)
    with pytest.raises(UserError, match="text: is damaged, or no gallery .file is not a database."):
        Gallery.open(tmp_path / "text")
    sqlite3.connect(tmp_path / "other").execute("CREATE TABLE people (name)")
    with pytest.raises(UserError, match="other: is no gallery; name a file that plsc gallery build wrote"):
        Gallery.open(tmp_path / "other")
    (tmp_path / "new-wal").write_bytes(b"of another gallery that was deleted by hand")
    with pytest.raises(UserError, match="new-wal: exists already; remove it"):
        Gallery.build(tmp_path / "new", embedder, {"Ann": pictures(1)})


def test_any_name_survives(gallery):
    names = ["../../etc", "a\nb", "a\x1b[31m", "Zoë", "\udcff", "<b>", "x" * 5000]
    for name in names:
        gallery.add(name, units(1))
    assert Gallery.open(gallery.path).names()[3:] == names


COMPOSED, DECOMPOSED = "Á\u1eb6", "A\u0301A\u0323\u0306"


def test_a_name_is_one_whatever_characters_it_is_written_with(tmp_path, embedder):
    shown = pictures(6)
    gallery = Gallery.build(tmp_path / "g", embedder, {DECOMPOSED: shown[:1], "Bob": shown[1:2]})
    gallery.add(COMPOSED, embedder.embed(shown[2:3]))
    gallery.add(DECOMPOSED, embedder.embed(shown[3:4]))
    for each in (gallery, Gallery.open(gallery.path)):
        assert each.names() == [COMPOSED, "Bob"]
    assert gallery.verify(DECOMPOSED, embedder.embed(shown[:1])).name == COMPOSED
    assert gallery.sources(DECOMPOSED) == []
    result = evaluate(gallery, embedder.embed(shown[:2]), [DECOMPOSED, "Bob"])
    assert len(result.known) == 2 and result.right.all()
    gallery.upgrade(embedder, {DECOMPOSED: shown[4:5], "Bob": shown[5:]})
    assert gallery.names() == [COMPOSED, "Bob"]
    gallery.remove(DECOMPOSED)
    assert gallery.names() == ["Bob"]
    gallery.add(DECOMPOSED, embedder.embed(shown[:1]))
    assert gallery.remove(DECOMPOSED)[0]["name"] == COMPOSED and gallery.names() == ["Bob"]


def test_two_names_that_become_one_are_refused(tmp_path, embedder, gallery):
    people = {COMPOSED: pictures(2)[:1], DECOMPOSED: pictures(2)[1:]}
    with pytest.raises(UserError, match=r"two names are the same text.*\(NFC and NFD\); rename one"):
        Gallery.build(tmp_path / "two", embedder, people)
    with pytest.raises(UserError, match="two names are the same text"):
        gallery.upgrade(embedder, people)
    with pytest.raises(UserError, match="names: must be different"):
        Gallery.from_embeddings(tmp_path / "two", embedder, [*people], units(2), np.arange(2))


@pytest.mark.parametrize(
    "name", [" ", "P001 ", " P001", "\ufeffP001", "P001\n", "\u200bP001", "P001\xa0", "\u3000", "\u202eP001"]
)
def test_a_name_that_seems_to_be_another_is_refused(tmp_path, embedder, gallery, name):
    for enter in (
        lambda: gallery.add(name, units(1)),
        lambda: Gallery.build(tmp_path / "new", embedder, {"Ann": pictures(1), name: pictures(1)}),
        lambda: Gallery.from_embeddings(tmp_path / "new", embedder, [name], units(1), np.zeros(1)),
    ):
        with pytest.raises(
            UserError, match="must not begin or end with white space or an invisible"
        ) as error:
            enter()
        assert str(error.value).isprintable()
    assert gallery.names() == ["Ann", "Bob", "Cy"] and not (tmp_path / "new").exists()


def _change(gallery, text, *values):
    """Write into the file as somebody else's program may."""
    gallery.close()
    with contextlib.closing(sqlite3.connect(gallery.path)) as connection, connection:
        connection.execute(text, values)


@pytest.mark.parametrize(
    ("text", "values", "message"),
    [
        ("UPDATE facts SET value = '7' WHERE key = 'network'", (), "its fact 'network' is damaged"),
        ("UPDATE facts SET value = '}' WHERE key = 'network'", (), "its fact '' is damaged"),
        ("UPDATE facts SET value = '4' WHERE key = 'embedding_size'", (), "has embeddings of 8 numbers"),
        (
            "UPDATE embeddings SET vector = ? WHERE picture = 2",
            (b"\0\0\xc0\x7f" * 8,),
            "that are not of length 1",
        ),
        ("UPDATE embeddings SET vector = ? WHERE picture = 2", (b"\0" * 28,), "of different sizes"),
        ("UPDATE embeddings SET vector = 'text' WHERE picture = 2", (), "of different sizes"),
        ("UPDATE people SET meta = '{' WHERE id = 2", (), "is not JSON"),
        ("DROP TABLE strangers", (), "is damaged, or no gallery .no such table: strangers."),
        ("PRAGMA user_version = 9", (), r"not those of this plsc \(format 9, expected 1\)"),
        (
            "CREATE TRIGGER t AFTER INSERT ON people BEGIN DELETE FROM people; END",
            (),
            "its tables are not those",
        ),
    ],
)
def test_what_others_have_written_is_checked(gallery, text, values, message):
    _change(gallery, text, *values)
    with pytest.raises(UserError, match=message):
        Gallery.open(gallery.path).people()


def test_pictures_are_removed_by_their_paths_and_whoever_has_none_left(gallery):
    gallery.add("Dee", units(3, seed=7), [Source(f"/{name}.jpg") for name in "abc"])
    gallery.add("Eve", units(1, seed=8), [Source("/e.jpg")])
    before = gallery.names()
    with pytest.raises(UserError, match="has nobody named 'Zoe'"):
        gallery.remove_pictures({"Eve": ["/e.jpg"], "Zoe": ["/z.jpg"]})
    assert gallery.names() == before  # all or nothing
    removed = gallery.remove_pictures({"Dee": ["/a.jpg", "/c.jpg"], "Eve": ["/e.jpg"]})
    assert [(entry["name"], entry["left"]) for entry in removed] == [("Dee", 1), ("Eve", 0)]
    assert gallery.sources("Dee") == ["/b.jpg"] and "Eve" not in gallery
    with pytest.raises(UserError, match="has no picture /b.jpg of Dee; nothing was removed"):
        gallery.remove_pictures({"Dee": ["/b.jpg", "/b.jpg"]})
    (best, *_) = gallery.search(units(3, seed=7)[1:2], 1, threshold=0.0)[0]
    assert best.name == "Dee" and best.similarity > 0.999999  # the template is the picture that is left


def test_pictures_are_removed_whose_paths_are_no_text(gallery):
    path, vector = os.fsdecode(b"/caf\xe9.jpg"), units(1, seed=9)
    gallery.add("Fay", vector, [Source(path)])
    assert gallery.sources("Fay") == [path]
    assert gallery.remove_pictures({"Fay": [path]}) == [{"name": "Fay", "pictures": [path], "left": 0}]
    assert "Fay" not in gallery
    gallery.close()
    assert all(vector.tobytes()[:64] not in file.read_bytes() for file in gallery.files())


def test_damage_is_found(gallery):
    gallery.close()
    good = gallery.path.read_bytes()
    with contextlib.closing(sqlite3.connect(gallery.path)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'people'").fetchone()
    for at in (0, 40, (root - 1) * 16_384):
        gallery.path.write_bytes(good[:at] + bytes(4096) + good[at + 4096 :])
        with pytest.raises(UserError, match="restore a backup, or build it again|is no gallery"):
            Gallery.open(gallery.path).people()
    gallery.path.write_bytes(good[: len(good) // 2])
    with pytest.raises(UserError, match="restore a backup, or build it again"):
        Gallery.open(gallery.path).people()


def test_anybody_can_read_the_file(gallery):
    gallery.add("Dee", units(1), [Source("d.jpg")], meta={"id": 7})
    with contextlib.closing(sqlite3.connect(f"file:{gallery.path}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT name, meta, path FROM people JOIN pictures ON person = people.id")
        assert [*rows][-1] == ("Dee", '{"id": 7}', "d.jpg")
        assert connection.execute("PRAGMA page_size").fetchone() == (16384,)
