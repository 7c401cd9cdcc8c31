"""What is wrong with the pictures of a gallery: by their pixels, by their embeddings, and what becomes of
them."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from plsc import Gallery, cli
from plsc.apps.curate import detector
from plsc.apps.serving import embedder as module
from plsc.apps.serving.gallery import alike, doctor, quality
from plsc.apps.serving.gallery.content import source_of
from plsc.apps.serving.gallery.store import Source
from plsc.data.preprocessing import Preprocessing
from plsc.errors import UserError
from tests.apps.serving.faces import SIDE, Finder, PatternEmbedder, picture, write_people
from tests.apps.serving.milvus import ENGINES, place
from tests.helpers.bounds import assert_within, cosines

PREPROCESSING = Preprocessing.of_images((1, SIDE, SIDE))
ALIGNED = Preprocessing.of_images((1, SIDE, SIDE), aligned=True)


def look(pixels, faces=None):
    return quality.look_at(pixels, PREPROCESSING, faces)


def rules(findings):
    return {finding.picture: finding.rule for finding in findings}


@pytest.fixture(autouse=True)
def no_detector(monkeypatch):
    monkeypatch.setattr(detector, "installed", lambda: False)


# -- pixels


def test_sharpness_is_of_the_detail_not_of_the_light_or_the_size():
    sharp = picture(0, 0)
    blurred = cv2.GaussianBlur(sharp, (0, 0), 1.5)
    assert look(blurred).sharpness < look(sharp).sharpness - 1
    pale = (sharp // 2 + 60).astype(np.uint8)
    large = cv2.resize(sharp, (4 * SIDE, 4 * SIDE), interpolation=cv2.INTER_CUBIC)
    for same in (pale, large):
        assert abs(look(same).sharpness - look(sharp).sharpness) < 0.5
    assert look(np.full((40, 40), 9, np.uint8)).sharpness is None


def test_a_copy_has_nearly_the_same_bits():
    one = cv2.GaussianBlur(cv2.resize(picture(0, 0), (112, 112)), (0, 0), 5)
    copy = cv2.imdecode(cv2.imencode(".jpg", one)[1], cv2.IMREAD_GRAYSCALE)
    other = cv2.GaussianBlur(cv2.resize(picture(0, 1), (112, 112)), (0, 0), 5)
    ours = int(look(one).bits, 16)
    assert (ours ^ int(look(copy).bits, 16)).bit_count() <= 3 < (ours ^ int(look(other).bits, 16)).bit_count()


def test_pixels_are_compared_with_the_gallery():
    ordinary = [look(picture(person, 0)) for person in range(40)]
    small = look(cv2.resize(picture(0, 1), (12, 12)))
    stretched = look(picture(0, 2)[:, 6:-6])
    blurred = look(cv2.GaussianBlur(picture(0, 3), (0, 0), 1.5))
    looks = [*ordinary, small, stretched, blurred, None]
    limits = quality.limits_of(looks, PREPROCESSING)
    findings = quality.judge_pixels(looks, limits, PREPROCESSING)
    assert rules(findings) == {40: "too small", 41: "stretched", 42: "blurred"}
    assert not any(finding.sure for finding in findings)
    assert findings[0].value == "12 x 12 pixels; the network takes 32 x 32, 0.5 of these at least"
    wide = [look(cv2.resize(picture(person, 0), (64, 32))) for person in range(40)]  # all of them: as trained
    limits = quality.limits_of(wide, PREPROCESSING)
    assert rules(quality.judge_pixels([*wide, ordinary[0]], limits, PREPROCESSING)) == {40: "stretched"}


def test_few_pictures_do_not_show_how_sharp_the_gallery_is():
    looks = [look(picture(person, 0)) for person in range(5)]
    limits = quality.limits_of(looks, PREPROCESSING)
    assert limits.sharpness is None
    first, second = quality.not_checked(looks, limits, PREPROCESSING)
    assert first.startswith("not checked: blur; it takes 20 pictures")
    assert "install the extra align" in second


@pytest.mark.parametrize(
    ("offsets", "rule"),
    [((0.01,), None), ((), "no face"), ((0.2,), "not aligned"), ((0.01, 0.02), "several faces")],
)
def test_faces_of_a_network_of_aligned_ones(offsets, rule):
    looks = [look(picture(0, 0), Finder(*offsets))]
    findings = quality.judge_pixels(looks, quality.limits_of(looks, ALIGNED), ALIGNED)
    assert [finding.rule for finding in findings] == [rule] * bool(rule)
    assert all(finding.sure == (rule == "no face") for finding in findings)


@pytest.mark.parametrize(
    ("faces", "aligned"), [(None, None), (Finder(0.01), True), (Finder(0.2), False), (Finder(), False)]
)
def test_a_picture_is_kept_with_whether_its_face_is_aligned(tmp_path, faces, aligned):
    cv2.imwrite(str(tmp_path / "a.png"), picture(0, 0))
    source = source_of(str(tmp_path / "a.png"), look(picture(0, 0), faces))
    assert source.aligned is aligned and source.path == str(tmp_path / "a.png")
    assert source_of(str(tmp_path / "a.png")).aligned is None


def test_faces_are_not_judged_where_most_pictures_have_none():
    looks = [look(picture(person, 0), Finder()) for person in range(30)] + [look(picture(0, 1), Finder(0.0))]
    limits = quality.limits_of(looks, PREPROCESSING)
    assert not limits.faces and not quality.judge_pixels(looks, limits, PREPROCESSING)
    assert "most of the pictures have none" in quality.not_checked(looks, limits, PREPROCESSING)[-1]


def test_a_face_that_fills_the_picture_is_found_with_a_border():
    class Near(Finder):
        def detect(self, rgb):
            return super().detect(rgb) if len(rgb) > SIDE else []

    found = look(picture(0, 0), Near(0.0))
    assert found.faces == 1 and found.offset is not None


def test_a_border_around_a_narrow_picture_is_no_larger_than_what_the_detector_takes():
    sides = []

    class Nowhere(Finder):
        def detect(self, rgb):
            sides.extend(rgb.shape[:2])
            return []

    found = quality.look_at(np.zeros((3, 200_000, 3), np.uint8), PREPROCESSING, Nowhere())
    assert found.faces == 0 and (found.width, found.height) == (200_000, 3)
    assert max(sides) <= 2 * detector.LONGEST_SIDE


def test_unaligned_pictures_are_refused_for_a_network_of_aligned_faces():
    looks = [look(picture(person, 0), Finder(0.3)) for person in range(3)]
    with pytest.raises(
        UserError, match="3 of 3 pictures show no face at the places .* plsc align PHOTOS ALIGNED"
    ):
        quality.refuse_unaligned(looks, ALIGNED)
    quality.refuse_unaligned(looks, PREPROCESSING)
    quality.refuse_unaligned([look(picture(0, 0), Finder(0.0))], ALIGNED)


# -- embeddings


def clusters(people, pictures, unlike, seed=0, size=64):
    """Embeddings [N, D] of people, and their owners."""
    rng = np.random.default_rng(seed)
    owners = np.repeat(np.arange(people), pictures)
    rows = rng.standard_normal((people, size))[owners] + unlike * rng.standard_normal((len(owners), size))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), owners


def test_compare_is_the_slow_way():
    embeddings, owners = clusters(7, 3, 0.7)
    embeddings, owners = embeddings[:-2], owners[:-2]  # the last person has one picture
    found = alike.compare(embeddings, owners)
    exact = embeddings.astype(np.float64)
    bound = 2 * cosines(embeddings.shape[1])  # one of them is a sum of three
    for number, own in enumerate(owners.tolist()):
        rest = exact[(owners == own) & (np.arange(len(owners)) != number)].sum(axis=0)
        means = np.array([exact[owners == person].sum(axis=0) for person in range(7)])
        near = means @ exact[number] / np.linalg.norm(means, axis=1)
        near[own] = -2
        assert found.nearest[number] == np.argmax(near)
        assert_within(found.other[number], near.max(), bound)
        if own == 6:
            assert np.isnan(found.own[number]) and np.isnan(found.share[number])
            continue
        ours = rest @ exact[number] / np.linalg.norm(rest)
        assert_within(found.own[number], ours, bound)
        assert found.share[number] == np.sum(near >= ours) / 6


def test_wrong_people_are_named_and_no_others():
    embeddings, owners = clusters(60, 6, 0.5)
    wrong = np.arange(0, 60, 5) * 6
    owners[wrong] = (owners[wrong] + 7) % 60
    found = alike.wrong_people(alike.compare(embeddings, owners), owners, None)
    assert set(np.flatnonzero(found)) <= set(wrong.tolist())
    assert found.sum() >= 9  # a stranger's picture is by chance among the LEAST_SHARE of the most alike, 5 %
    few = owners < 9
    assert not alike.wrong_people(alike.compare(embeddings[few], owners[few]), owners[few], None).any()


def test_a_network_that_tells_nobody_apart_names_nobody():
    for seed in range(5):
        embeddings, owners = clusters(60, 6, 8.0, seed)
        assert alike.wrong_people(alike.compare(embeddings, owners), owners, None).sum() <= 1
        assert len(alike.same_people(embeddings, owners)) <= 1


def test_two_pictures_do_not_show_which_of_them_is_wrong():
    embeddings, owners = clusters(60, 2, 0.5)
    owners[0] = 7
    owners[14] = 0
    assert not alike.wrong_people(alike.compare(embeddings, owners), owners, None).any()


def test_a_person_under_two_names():
    embeddings, owners = clusters(60, 4, 0.5)
    owners[2:4] = 60  # two pictures of the first person
    assert [(one, other) for one, other, _ in alike.same_people(embeddings, owners)] == [(0, 60)]


def gallery_of(people=30, pictures=4):
    pixels = [picture(person, number) for person in range(people) for number in range(pictures)]
    owners = np.repeat(np.arange(people), pictures)
    embeddings = PatternEmbedder().embed(np.stack(pixels)[:, None])
    files = [f"{owner}-{number}" for number, owner in enumerate(owners)]
    names = [f"p{person}" for person in range(people)]
    return quality.Pictures(files, [look(each) for each in pixels], embeddings, owners, names)


def test_a_copy_is_named_under_the_name_that_has_nothing_else():
    whole = gallery_of()
    doubled = quality.Pictures(
        [*whole.files, "copy", "twice"],
        [*whole.looks, whole.looks[5], whole.looks[9]],
        np.concatenate([whole.embeddings, whole.embeddings[[5, 9]]]),
        np.append(whole.owners, [30, whole.owners[9]]),
        [*whole.names, "other"],
    )
    findings = quality.judge(doubled, PREPROCESSING, 0.5)
    by_file = {doubled.files[finding.picture]: finding for finding in findings}
    assert by_file.keys() >= {"copy"} and len(findings) == 2
    assert by_file.pop("copy").value == "the same picture as p1's 1-5"
    (within,) = by_file.values()
    assert not within.sure and "counts twice" in within.remedy
    assert not quality.judge(whole, PREPROCESSING, 0.5)


@pytest.mark.parametrize("copies", [3, 12])
def test_of_many_copies_each_but_one_is_named_once(copies):
    embeddings = np.repeat(clusters(1, 1, 0.5)[0], copies, axis=0)
    found = alike.same_pictures(embeddings, np.arange(copies), [look(picture(0, 0)).bits] * copies)
    assert sorted(copy for copy, _ in found) == [*range(1, copies)]


def test_what_pixels_show_is_not_judged_once_more():
    whole = gallery_of()
    embeddings = whole.embeddings.copy()
    embeddings[0] *= -1
    assert rules(quality.judge(whole._replace(embeddings=embeddings), PREPROCESSING, 0.5)) == {
        0: "wrong person"
    }
    looks = [whole.looks[0]._replace(width=4, height=4), *whole.looks[1:]]
    spoilt = whole._replace(embeddings=embeddings, looks=looks)
    assert rules(quality.judge(spoilt, PREPROCESSING, 0.5)) == {0: "too small"}


# -- the commands


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """people/p00/0.png to people/p29/3.png; wrong.png shows p03, small.png p04 in few pixels."""
    monkeypatch.chdir(tmp_path)
    write_people(tmp_path / "people", 30, 4)
    cv2.imwrite("wrong.png", picture(3, 9))
    cv2.imwrite("small.png", cv2.resize(picture(4, 9), (12, 12)))
    known = {"a.yaml": PatternEmbedder(origin={"config": "a.yaml", "overrides": []})}
    monkeypatch.setattr(module, "from_run", lambda config, overrides=(): known[config])
    monkeypatch.setattr(module, "from_origin", lambda origin, network: known[origin["config"]])
    return tmp_path


def run(capsys, *args):
    capsys.readouterr()
    code = cli.main(["gallery", *args])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(("review", "refused"), [("off", 0), ("standard", 1), ("strict", 2)])
def test_build_refuses_what_the_review_says(folder, capsys, review, refused):
    (folder / "wrong.png").rename("people/p20/wrong.png")
    (folder / "small.png").rename("people/p04/small.png")
    code, out, err = run(capsys, "build", "g", "-c", "a.yaml", "people", "--review", review, "--json")
    assert code == int(refused > 0) and len(json.loads(out)["left_out"]) == refused
    wrong = "p20: people/p20/wrong.png: wrong person: "
    assert (f"left out: {wrong}" in err) == (review != "off")
    assert ("; p03 most (" in err) == (review != "off")
    small = "p04: people/p04/small.png: too small: 12 x 12 pixels"
    assert (f"WARNING {small}" in err) == (review == "standard") and (f"left out: {small}" in err) == (
        review == "strict"
    )
    assert ("not checked: faces" in err) == (review != "off")


def test_add_refuses_a_wrong_person_and_adds_nothing(folder, capsys):
    assert run(capsys, "build", "g", "-c", "a.yaml", "people")[0] == 0
    code, _, err = run(capsys, "add", "g", "p20", "wrong.png")
    assert (
        code == 2
        and "p20: wrong.png: wrong person: 17 % of the other people are more like it than p20 (" in err
    )
    assert "nothing was added; --review off adds them all the same" in err
    assert len(Gallery.open("g").sources("p20")) == 4
    code, _, err = run(capsys, "add", "g", "p04", "small.png")
    assert code == 0 and "WARNING p04: small.png: too small: " in err
    code, _, err = run(capsys, "add", "g", "somebody", "wrong.png")
    assert (
        code == 0 and "somebody: wrong.png: same person: p03 is like it above the gallery's threshold" in err
    )
    assert run(capsys, "add", "g", "p20", "wrong.png", "--review", "off")[0] == 0


def test_a_wrong_person_is_found_whose_pictures_have_no_paths(folder, capsys):
    assert run(capsys, "build", "g", "-c", "a.yaml", "people")[0] == 0
    gallery = Gallery.open("g", PatternEmbedder())
    gallery.remove("p20")
    gallery.add(
        "p20", PatternEmbedder().embed(np.stack([picture(20, number) for number in range(4)])[:, None])
    )
    assert not gallery.sources("p20") and gallery.pictures("p20") == 4
    code, _, err = run(capsys, "add", "g", "p20", "wrong.png", "-c", "a.yaml")
    assert code == 2 and "p20: wrong.png: wrong person: " in err


def test_people_of_the_training_are_no_measure(folder, capsys, monkeypatch):
    """Nothing says then how well the network knows people whom it has not seen: a wrong person is not
    named."""
    monkeypatch.setattr(PatternEmbedder, "trained_on", lambda self: frozenset(f"p{n:02}" for n in range(30)))
    assert run(capsys, "build", "g", "-c", "a.yaml", "people")[0] == 0
    gallery = Gallery.open("g")
    assert gallery.sample()[0].shape == (0, 64) and gallery.sample()[1] == []
    embeddings = PatternEmbedder().embed(picture(3, 9)[None, None])
    limits = quality.limits_of_gallery(gallery, None)
    assert limits.sharpness is not None
    assert not quality.judge_addition(gallery, "p20", embeddings, [look(picture(3, 9))], limits)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_doctor_lists_what_remove_removes(folder, capsys, engine):
    where = str(place(Path(), engine))
    evil = "<script>alert(1)</script>"
    (folder / "people" / "p20").rename(folder / "people" / evil.replace("/", "\u2215"))
    name = evil.replace("/", "\u2215")
    (folder / "wrong.png").rename(f"people/{name}/wrong.png")
    (folder / "small.png").rename("people/p04/small.png")
    assert run(capsys, "build", where, "-c", "a.yaml", "people", "--review", "off")[0] == 0
    assert run(capsys, "evaluate", where, "people")[0] == 0
    code, out, _ = run(capsys, "doctor", where, "--output", "found")
    assert code == 2 and "wrong person" in out and "1 surely wrong, 1 doubtful" in out
    page = (folder / "found" / doctor.PAGE).read_text()
    assert (
        name not in page
        and "&lt;script&gt;alert(1)&lt;" in page
        and page.count("data:image/png;base64,") >= 3
    )
    lines = (folder / "found" / doctor.LIST).read_text().splitlines()
    assert [line.split("\t")[0] for line in lines[2:]] == ["remove", "# remove"] or [
        line.split("\t")[0] for line in lines[2:]
    ] == ["# remove", "remove"]
    gallery = Gallery.open(where)
    wrong = next(path for path in gallery.sources(name) if path.endswith("wrong.png"))
    with pytest.raises(UserError, match="has no picture none.png of p04; nothing was removed"):
        gallery.remove_pictures({name: [wrong], "p04": ["none.png"]})
    gallery.add(name, gallery.enrolled()[3][:1], [Source(wrong)])  # after the doctor was asked
    code, out, _ = run(capsys, "remove", where, "--list", f"found/{doctor.LIST}", "--receipt", "receipt.json")
    assert code == 0 and f"pictures of {name}: removed; 30 people" in out
    (removed,) = json.loads((folder / "receipt.json").read_text())["removed"]
    assert removed == {"name": name, "pictures": [wrong], "left": 5}, "a row for a line of the list"
    assert len(gallery.sources(name)) == 5 and len(gallery.sources("p04")) == 5
    assert run(capsys, "remove", where, "--list", f"found/{doctor.LIST}")[0] == 0
    assert len(gallery.sources(name)) == 4
    gallery.close()
    code, _, err = run(capsys, "remove", where, "--list", f"found/{doctor.LIST}")
    assert code == 2 and "is not in the gallery; run plsc gallery doctor again" in err
    code, out, _ = run(capsys, "doctor", where, "--output", "found", "--review", "strict", "--json")
    assert code == 1 and [each["rule"] for each in json.loads(out)["findings"]] == ["too small"]
    run(capsys, "remove", where, "--list", f"found/{doctor.LIST}")
    assert run(capsys, "doctor", where, "--output", "found")[0] == 0


def test_a_gallery_of_aligned_faces_refuses_a_compatible_network_of_others(folder, capsys):
    assert run(capsys, "build", "g", "-c", "a.yaml", "people")[0] == 0
    gallery = Gallery.build("h", PatternEmbedder(aligned=True), {"Ann": ["people/p00/0.png"]})
    assert gallery.preprocessing.aligned is True and Gallery.open("g").preprocessing.aligned is None
    gallery.check(PatternEmbedder())  # not known of it
    with pytest.raises(UserError, match="are of aligned faces, those of .* of pictures that are not aligned"):
        gallery.check(PatternEmbedder(aligned=False))


def test_a_list_that_is_none_is_refused(folder, capsys):
    run(capsys, "build", "g", "-c", "a.yaml", "people")
    (folder / "list").write_text("p00\n")
    code, _, err = run(capsys, "remove", "g", "--list", "list")
    assert code == 2 and "list: is no list of plsc gallery doctor" in err
    (folder / "list").write_text("# plsc gallery doctor 1\nremove p00\n")
    assert "list:2: must be remove, a name and a file" in run(capsys, "remove", "g", "--list", "list")[2]
    assert "remove: takes names, or --list" in run(capsys, "remove", "g", "p00", "--list", "list")[2]


def test_pictures_that_plsc_align_wrote_are_refused_by_a_network_of_others(folder, capsys, monkeypatch):
    embedder = PatternEmbedder(aligned=False)
    monkeypatch.setattr(module, "from_run", lambda config, overrides=(): embedder)
    (folder / "people" / "alignment.json").write_text("{}")
    code, _, err = run(capsys, "build", "g", "-c", "a.yaml", "people")
    assert (
        code == 2
        and "its pictures were aligned by plsc align, the network was trained on pictures that are not" in err
    )
