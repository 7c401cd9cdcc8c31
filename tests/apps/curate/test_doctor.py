"""plsc doctor: what it finds in sets and between them, and the list of good images."""

import os

import cv2
import numpy as np
import pytest

from plsc import cli
from plsc.data.bin_packs import write_pack
from plsc.data.image_list import ImageList
from tests.helpers.image_files import png, write_folder, write_rec


@pytest.fixture
def faces(tmp_path):
    """Ten pictures that show three people, none twice."""
    return write_folder(tmp_path / "faces", {"Ann": 4, "Bob": 4, "Cy": 2})


@pytest.fixture
def run(capsys):
    """Arguments -> exit code, and the findings that are no notes."""

    def run(*arguments):
        code = cli.main(["doctor", *map(str, arguments)])
        said = capsys.readouterr().out
        return code, [line for line in said.splitlines() if not line.startswith("NOTE")]

    return run


def test_a_clean_set(faces, capsys):
    assert cli.main(["doctor", str(faces)]) == 0
    said = capsys.readouterr().out
    assert said == f"NOTE {faces}: 10 images of 3 classes\n0 errors, 0 warnings\n"


def test_lists_of_pairs_are_distinguished_from_lists_of_images(faces, capsys):
    def kind(text):
        (faces / "list.txt").write_text(text)
        assert cli.main(["doctor", str(faces / "list.txt")]) == 0
        return capsys.readouterr().out.splitlines()[0].split()[-1]

    a, b, c = "Ann/Ann_0001.png", "Ann/Ann_0002.png", "Bob/Bob_0001.png"
    pairs = f"{a},{b},1\n{a},{c},0\n"
    lfw = "Ann\t1\t2\nAnn\t1\tBob\t1\n"
    for text in (pairs, pairs.replace(",", "\t"), f"1 1\n{lfw}", f"\ufeff1\r\n{lfw}"):
        assert kind(text) == "images", text  # else: class count
    (faces / "a,b,c.png").write_bytes(png(99))
    for text in (f"{a}\t0\n{c} 1\n", f"a,b,c.png\t0\n{c}\t1\n"):
        assert kind(text) == "classes", text
    (faces / "list.csv").write_text(f'"a,b,c.png",0\n{c},1\n')
    assert cli.main(["doctor", str(faces / "list.csv")]) == 0


def test_copies_are_warned_of(faces, run):
    (faces / "Bob" / "Bob_0001.png").write_bytes(png(0))  # Ann's first
    (faces / "Ann" / "Ann_0004.png").write_bytes(png(1))  # Ann's second
    code, lines = run(faces)
    assert code == 1 and lines == [
        f"WARNING {faces}: 1 images belong to two or more identities, byte for byte",
        f"    {faces}/Ann/Ann_0001.png = {faces}/Bob/Bob_0001.png",
        f"WARNING {faces}: 1 images occur more than once, byte for byte",
        f"    {faces}/Ann/Ann_0002.png = {faces}/Ann/Ann_0004.png",
        "0 errors, 2 warnings",
    ]


def test_images_that_cannot_be_read_are_errors_and_some_are_named(tmp_path, run):
    folder = write_folder(tmp_path / "faces", {"Ann": 30, "Bob": 2})
    for number in range(1, 25):
        (folder / "Ann" / f"Ann_{number:04}.png").write_bytes(b"x" * number)
    code, lines = run(folder)
    assert code == 2 and lines[0] == f"ERROR {folder}: 24 images cannot be read"
    assert lines[2].startswith(
        f"    {folder}/Ann/Ann_0002.png: not an image that OpenCV can decode (2 bytes)"
    )
    assert lines[21:] == ["    ... and 4 more", "1 error, 0 warnings"]


def test_transparent_images_and_lone_ones_are_counted(tmp_path, capsys):
    """An alpha channel without a transparent pixel changes nothing."""
    folder = tmp_path / "set"
    for name in ("Ann", "Bob"):
        (folder / name).mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (9, 9, 4)).astype(np.uint8)
    opaque = pixels.copy()
    opaque[..., 3] = 255
    for path, image in {"Ann/a.png": pixels, "Ann/b.webp": pixels[::-1], "Bob/c.png": opaque}.items():
        cv2.imwrite(str(folder / path), image)
    assert cli.main(["doctor", str(folder)]) == 1
    said = capsys.readouterr().out
    text = "transparent pixels, whose hidden colours the network sees; put them onto one background"
    names = f"    {folder}/Ann/a.png\n    {folder}/Ann/b.webp\n"
    assert f"WARNING {folder}: 2 images have {text}\n{names}NOTE" in said
    assert f"NOTE {folder}: 1 class has only one image, which makes no pair to verify\n" in said
    cli.main(["init", str(folder), "--output", str(tmp_path / "a.yaml")])
    said = capsys.readouterr().out
    assert f"WARNING {folder}: 2 of 3 pictures that were tried have {text}\n" in said
    assert "\n1 class has only one image, which makes no pair to verify\n" in said


def test_leakage_by_name_and_by_content(faces, run, tmp_path):
    other = write_folder(tmp_path / "other", {"Dan": 1, "Bob": 1})
    (other / "Dan" / "Dan_0001.png").write_bytes(png(9))
    (other / "Bob" / "Bob_0001.png").write_bytes(png(50))
    write_pack(str(tmp_path / "a.bin"), [png(60), png(2), png(61), png(62)], [True, False])
    code, lines = run(faces, "--validation", other, tmp_path / "a.bin")
    assert code == 2 and lines == [
        f"ERROR {faces} and {other}: 1 identities are in both",
        "    Bob",
        f"ERROR {faces} and {other}: 1 images are in both, byte for byte",
        f"    {faces}/Cy/Cy_0002.png = {other}/Dan/Dan_0001.png",
        f"ERROR {faces} and {tmp_path}/a.bin: 1 images are in both, byte for byte",
        f"    {faces}/Ann/Ann_0003.png = a.bin: image 1 (pair 0)",
        "3 errors, 0 warnings",
    ]


@pytest.mark.parametrize(
    "pictures, same, code, said",
    [
        (
            (90, 91, 91, 90),
            [True, False],
            2,
            "pair 0 and pair 1: the same two images are labelled both as one identity",
        ),
        ((90, 90, 91, 92), [True, True], 1, "1 pair compared with itself, which proves nothing: pair 0"),
        (range(100, 140), [True] * 20, 1, "all pairs are of the same class"),
    ],
)
def test_pairs_that_prove_little(faces, run, tmp_path, pictures, same, code, said):
    write_pack(str(tmp_path / "a.bin"), map(png, pictures), same)
    found, lines = run(faces, "--validation", tmp_path / "a.bin")
    assert found == code and said in lines[0]


def test_a_set_that_cannot_be_opened_is_an_error_and_the_others_are_examined(faces, run, tmp_path):
    (tmp_path / "list.txt").write_text("faces/Ann/Ann_0001.png\t0\nfaces/Bob/Bob_0001.png\t2\n")
    (tmp_path / "pairs.csv").write_text("faces/Ann/Ann_0001.png,none.png,1\n")
    (faces / "Ann" / "Ann_0002.png").write_bytes(png(0))
    code, lines = run(tmp_path / "list.txt", "--validation", faces, tmp_path / "pairs.csv")
    assert code == 2 and "no image has label 1 (1 of the labels 0 to 2 are missing)" in lines[0]
    assert lines[1] == f"WARNING {faces}: 1 images occur more than once, byte for byte"
    assert "pairs.csv: 1 of its images do not exist: none.png" in lines[3]


def test_the_sets_of_a_config(run, tmp_path):
    write_folder(tmp_path / "faces", {"Ann": 2, "Bob": 2})
    others = write_folder(tmp_path / "others", {"Cy": 2, "Dan": 2}, number=90)
    (tmp_path / "a.yaml").write_text(
        f"DataLoader:\n  Train:\n    dataset: {{name: ImageFolder, folder: {tmp_path}/faces}}\n  Eval:\n    "
        f"dataset: {{name: ImagePairs, images: {others}, num_pairs: 4}}\n"
    )
    code, lines = run("-c", tmp_path / "a.yaml")
    assert code == 0 and lines == ["0 errors, 0 warnings"]
    code, lines = run("-c", tmp_path / "a.yaml", "-o", f"DataLoader.Eval.dataset.images={tmp_path}/faces")
    assert code == 2 and lines[0].endswith("Eval.dataset: 2 identities are in both")


def test_labelled_images_of_a_config_are_of_the_classes_that_are_trained_on(faces, run, tmp_path):
    val = write_folder(tmp_path / "val", {"Ann": 1, "Bob": 1, "Cy": 1}, number=90)
    dataset = "{{dataset: {{name: ImageFolder, folder: {0}}}}}"
    keys = f"Train: {dataset.format(faces)}, Eval: {dataset.format(val)}"
    (tmp_path / "my.yaml").write_text(f"DataLoader: {{{keys}}}\n")
    assert run("-c", tmp_path / "my.yaml") == (0, ["    Ann", "    Bob", "    Cy", "0 errors, 0 warnings"])


def test_wrong_labels_are_searched_in_all_training_sets_together(faces, run, tmp_path, monkeypatch):
    more = write_folder(tmp_path / "more", {"Dan": 2, "Eve": 2}, number=90)
    sets = ", ".join(f"{{name: ImageFolder, folder: {folder}}}" for folder in (faces, more))
    (tmp_path / "two.yaml").write_text(
        f"DataLoader: {{Train: {{dataset: [{sets}]}}, Eval: {{dataset: null}}}}\n"
    )
    found = lambda cfg, data: (data.labels, {f"{data.num_classes} classes": data.class_names})
    monkeypatch.setattr("plsc.apps.curate.wrong_labels.find_wrong_labels", found)
    code, lines = run("--trained", tmp_path / "two.yaml")
    assert code == 1 and lines[0] == "WARNING DataLoader.Train.dataset: 5 classes"
    assert lines[1:6] == [f"    {name}" for name in ("Ann", "Bob", "Cy", "Dan", "Eve")]
    assert run("-c", tmp_path / "two.yaml", "--list", tmp_path / "clean.txt") == (2, [])


def test_the_list_has_what_is_right(faces, run, tmp_path):
    (faces / "Ann" / "Ann_0002.png").write_bytes(png(0))  # Ann's first
    (faces / "Bob" / "Bob_0001.png").write_bytes(b"broken")
    for number, name in enumerate(("Cy_0001", "Cy_0002")):
        (faces / "Cy" / f"{name}.png").write_bytes(png(2 + number))  # two of Ann's
    code, lines = run(faces, "--list", tmp_path / "clean.txt")
    assert code == 2 and lines[-1] == (
        f"{tmp_path}/clean.txt: 4 of 10 images; to train on it, set name: ImageList"
    )
    clean = ImageList(str(tmp_path / "clean.txt"))
    names = [os.path.relpath(clean.name(index), faces) for index in range(len(clean))]
    assert names == ["Ann/Ann_0001.png", *(f"Bob/Bob_000{number}.png" for number in (2, 3, 4))]
    assert clean.labels.tolist() == [0, 1, 1, 1] and clean.class_names == ["Ann", "Bob"]


@pytest.mark.parametrize(
    "names, kept", [(["007", "008"], True), (["1", "Ann"], False), (["A\tB", "C"], False)]
)
def test_the_list_has_names_if_they_can_be_read_again(run, tmp_path, names, kept):
    folder = write_folder(tmp_path / "faces", dict.fromkeys(names, 2))
    run(folder, "--list", tmp_path / "clean.txt")
    clean = ImageList(str(tmp_path / "clean.txt"))
    assert clean.labels.tolist() == [0, 0, 1, 1]
    labels = [line.split("\t")[-1] for line in (tmp_path / "clean.txt").read_text().splitlines()]
    assert labels == (
        [f"{folder}/{name}" for name in names for _ in range(2)] if kept else ["0", "0", "1", "1"]
    )


def test_names_in_a_list_are_kept(faces, run, tmp_path):
    (tmp_path / "names.csv").write_text("faces/Ann/Ann_0001.png,Zoe\nfaces/Ann/Ann_0002.png,Yan\n")
    run(tmp_path / "names.csv", "--list", tmp_path / "clean.txt")
    assert ImageList(str(tmp_path / "clean.txt")).class_names == ["Yan", "Zoe"]


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["faces", "-o", "Head.margin=0.3"], "-o: changes a config's keys; give the config with -c"),
        (["-c", "my.yaml", "--validation", "lfw.bin"], "--validation: the config names the sets"),
        (["faces", "--validation", "b", "faces/"], "--validation: faces is the training set"),
        (["faces", "--list", "faces"], "faces: exists already; name a new list"),
        (["pairs.csv", "--list", "clean.txt"], "--list: pairs.csv has pairs, not labelled images"),
        (["a.rec", "--list", "clean.txt"], "--list: needs images in separate files; plsc convert a.rec"),
    ],
)
def test_what_it_refuses(faces, tmp_path, monkeypatch, capsys, arguments, line):
    monkeypatch.chdir(tmp_path)
    write_rec(tmp_path / "a.rec", [0, 1])
    (tmp_path / "pairs.csv").write_text("faces/Ann/Ann_0001.png,faces/Ann/Ann_0002.png,1\n")
    assert cli.main(["doctor", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"ERROR {line}")


def test_names_cannot_control_the_terminal(run, tmp_path):
    folder = write_folder(tmp_path / "faces", {"\x1b[31mAnn": 2, "Bob\nERROR all is lost": 2})
    with open(os.fsencode(folder) + b"/Bob\nERROR all is lost/J\xf6rg.png", "wb") as file:
        file.write(b"x")
    _, lines = run(folder, "--validation", write_folder(tmp_path / "other", {"\x1b[31mAnn": 2, "Cy": 1}))
    text = "\n".join(lines)
    assert "\x1b" not in text and "\nERROR all" not in text
    assert "J\\xf6rg.png" in text and "\n    \\x1b[31mAnn\n" in text
