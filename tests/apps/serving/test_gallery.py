"""Galleries: what they answer, what they refuse, and what two objects of one folder see of each other."""

import json

import cv2
import numpy as np
import pytest

from plsc import Gallery
from plsc.apps.serving.gallery.evaluate import evaluate
from plsc.apps.serving.gallery.pictures import embed_pictures, people_of
from plsc.errors import MissingFileError, UserError
from plsc.utils.calibration import Calibration
from tests.apps.serving.fake_embedder import FakeEmbedder, pictures, units
from tests.bounds import assert_within, cosines, perturbed
from tests.image_files import write_folder
from tests.launch import run_python

CALIBRATION = Calibration(
    method="logistic", set="demo", step=1, pairs=9, prior=0.5, cosine=[-1.0, 1.0], log_odds=[-4.0, 4.0]
)


def names_of(matches):
    return [match.name for match in matches]


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
    assert repr(gallery) == f"<Gallery: 3 people in {gallery.folder}>"


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
        (lambda gallery: gallery.add("Ann", units(0)), "needs at least one embedding"),
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
    assert Gallery.open(gallery.folder).names() == gallery.names() == ["Ann", "Bob", "Cy"]


def test_others_see_a_change_after_refresh(gallery):
    other = Gallery.open(gallery.folder)
    gallery.add("Dee", units(1))
    assert "Dee" not in other.names()
    other.refresh()
    assert other.names() == ["Ann", "Bob", "Cy", "Dee"]
    other.remove("Ann")  # sees what has been written before it writes
    gallery.add("Eve", units(1))
    assert gallery.names() == ["Bob", "Cy", "Dee", "Eve"]


def test_erasing_finds_whom_others_have_added_and_removed(gallery):
    other = Gallery.open(gallery.folder)
    other.add("Dee", units(1))
    other.remove("Ann")
    with pytest.raises(UserError, match="has nobody named 'Ann'"):
        gallery.erase(["Dee", "Ann"])
    assert gallery.names() == ["Bob", "Cy", "Dee"]
    (removed,) = gallery.erase(["Dee", "Dee"])["removed"]
    assert removed["name"] == "Dee"
    assert gallery.names() == Gallery.open(gallery.folder).names() == ["Bob", "Cy"]
    assert all(b"Dee" not in path.read_bytes() for path in gallery.folder.iterdir())


def test_a_long_log_becomes_part_of_the_rows(gallery, monkeypatch):
    monkeypatch.setattr("plsc.apps.serving.gallery.gallery._LEAST_LOG", 2000)
    other = Gallery.open(gallery.folder)
    before = gallery.search(units(1), top=50)
    gallery.remove("Bob")
    for number in range(40):
        gallery.add(f"p{number}", units(1, seed=number), [f"{number}.png"])
    files = {path.name for path in gallery.folder.iterdir()}
    generation = gallery.header.generation
    assert generation > 1 and files == {
        "gallery.json",
        ".lock",
        *(gallery.header.rows_file, gallery.header.people_file, gallery.header.log_file),
    }
    other.refresh()
    assert other.names() == gallery.names() == ["Ann", "Cy", *(f"p{number}" for number in range(40))]
    assert other.sources("p7") == ["7.png"]
    similar = {match.name: match.similarity for match in other.search(units(1), top=50)[0]}
    kept = {match.name: match.similarity for match in before[0] if match.name != "Bob"}
    assert kept.items() <= similar.items()


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
    (tmp_path / "g.tmp").mkdir()
    with pytest.raises(UserError, match=r"g\.tmp: exists already; remove it"):
        Gallery.build(tmp_path / "g", embedder, {"Ann": pictures(1)})


def test_galleries_and_exports_need_no_paddle(tmp_path):
    code = "import sys, plsc.apps.serving.gallery, plsc.apps.serving.embedder, plsc.apps.serving.gallery.command; sys.exit('paddle' in sys.modules)"
    run_python("-c", code, cwd=tmp_path)


def test_nothing_is_overwritten(gallery, embedder, tmp_path):
    with pytest.raises(UserError, match="exists already"):
        Gallery.build(gallery.folder, embedder, {"Ann": pictures(1)})
    with pytest.raises(MissingFileError, match="is no gallery, it has no gallery.json"):
        Gallery.open(tmp_path)


def test_any_name_survives(gallery):
    names = ["../../etc", "a\nb", "a\x1b[31m", "Zoë", "\udcff", "<b>", "x" * 5000]
    for name in names:
        gallery.add(name, units(1))
    assert Gallery.open(gallery.folder).names()[3:] == names


COMPOSED, DECOMPOSED = "Á\u1eb6", "A\u0301A\u0323\u0306"


def test_a_name_is_one_whatever_characters_it_is_written_with(tmp_path, embedder):
    shown = pictures(6)
    gallery = Gallery.build(tmp_path / "g", embedder, {DECOMPOSED: shown[:1], "Bob": shown[1:2]})
    gallery.add(COMPOSED, embedder.embed(shown[2:3]))
    gallery.add(DECOMPOSED, embedder.embed(shown[3:4]))
    for each in (gallery, Gallery.open(gallery.folder)):
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
    assert gallery.erase([DECOMPOSED])["removed"][0]["name"] == COMPOSED and gallery.names() == ["Bob"]


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


def test_damage_is_found(gallery):
    gallery.add("Dee", units(1))
    for name in (
        "gallery.json",
        gallery.header.rows_file,
        gallery.header.people_file,
        gallery.header.log_file,
    ):
        path = gallery.folder / name
        good = path.read_bytes()
        path.write_bytes(good[:-2] + bytes([good[-2] ^ 1]) + good[-1:])
        with pytest.raises(UserError, match="restore the gallery, or build it again"):
            Gallery.open(gallery.folder)
        path.write_bytes(good)
    fields = json.loads((gallery.folder / "gallery.json").read_bytes())
    assert fields["people"] == 3 and len(Gallery.open(gallery.folder)) == 4
