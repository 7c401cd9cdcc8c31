import json
import os
import re

import cv2
import numpy as np
import pytest

from plsc import cli
from plsc.apps.curate.doctor import spread
from plsc.config import load
from plsc.data.bin_packs import write_pack
from plsc.evaluation.verification import ONE_KIND
from tests.helpers.image_files import png, write_folder


@pytest.fixture
def faces(tmp_path):
    """Ten pictures of three people, none of them twice."""
    return write_folder(tmp_path / "faces", {"Ann": 4, "Bob": 4, "Cy": 2})


@pytest.fixture
def run(tmp_path, capsys):
    """Arguments -> exit code, printed text, doctor.json."""

    def run(*arguments):
        code = cli.main(["doctor", *map(str, arguments), "--output", str(tmp_path / "doctor")])
        text = capsys.readouterr().out
        report = json.loads((tmp_path / "doctor" / "doctor.json").read_text())
        assert report["severity"] == code
        assert (tmp_path / "doctor" / "report.txt").read_text() in text
        return code, text, report

    return run


def levels(report, level):
    return [line["text"] for line in report["findings"] if line["level"] == level]


def test_a_clean_set(faces, run, tmp_path):
    code, text, report = run(faces)
    assert code == 0 and text.endswith(f"errors: 0, warnings: 0\ndone: report in {tmp_path}/doctor\n")
    (numbers,) = report["sets"].values()
    assert (numbers["images"], numbers["classes"], numbers["size"]) == (10, 3, "12 x 10")
    assert (
        numbers["images_per_class"] == "2 to 4, median 4"
        and 120 < numbers["mean"] < 135
        and 70 < numbers["std"] < 78
    )
    resized, stretched = levels(report, "note")
    assert resized == "its images are resized from 12 x 10 to 112 x 112 (height x width)"
    assert stretched.startswith(
        "10 images are stretched: for their height they become 1.20 times as wide (median; the most: 1.20 times)"
    )
    assert (tmp_path / "doctor" / "images_per_class.png").read_bytes().startswith(b"\x89PNG")
    assert [*report["classes_with_images"].values()] == [{"1": 0, "2": 1, "3-4": 2}]
    assert re.search(r"^images +10$", text, re.MULTILINE)


def test_the_spread_counts_every_class_once():
    labels = np.repeat(np.arange(9), [1, 1, 2, 3, 4, 5, 8, 9, 300])
    found = spread(labels, 9)
    assert {name: count for name, count in found.items() if count} == {
        "1": 2,
        "2": 1,
        "3-4": 2,
        "5-8": 2,
        "9-16": 1,
        "257-512": 1,
    }
    assert [*found][:7] == ["1", "2", "3-4", "5-8", "9-16", "17-32", "33-64"]
    assert spread(np.array([0, 0, 2]), 4) == {"0": 2, "1": 1, "2": 1}


def test_warnings(faces, run):
    (faces / "Bob" / "Bob_0001.png").write_bytes(png(0))  # Ann's first
    (faces / "Ann" / "Ann_0004.png").write_bytes(png(1))  # Ann's second
    (faces / "Cy" / "Cy_0001.png").unlink()
    cv2.imwrite(str(faces / "Cy" / "Cy_0002.png"), np.zeros((32, 32), np.uint8))
    code, text, report = run(faces)
    assert code == 1 and text.count("WARNING") == 3 and "errors: 0, warnings: 3" in text
    assert levels(report, "warning") == [
        "1 images are not 12 x 10 as most are",
        "1 images are under two or more identities, byte for byte",
        "1 images of one identity are there twice or more",
    ]
    examples = [line["examples"] for line in report["findings"] if line["level"] == "warning"]
    assert examples[0] == [f"{faces}/Cy/Cy_0002.png: 32 x 32"]
    assert examples[1] == [f"{faces}/Ann/Ann_0001.png = {faces}/Bob/Bob_0001.png"]
    assert examples[2] == [f"{faces}/Ann/Ann_0002.png = {faces}/Ann/Ann_0004.png"]
    assert "1 of 3 classes have a single image: nothing shows how the images of such a class vary" in levels(
        report, "note"
    )


def test_images_that_cannot_be_read_are_errors_and_named(faces, run):
    for number in range(1, 5):
        (faces / "Ann" / f"Ann_{number:04}.png").write_bytes(b"x" * number)
    code, text, report = run(faces)
    assert code == 2 and levels(report, "error") == ["4 images cannot be read"]
    assert f"\n    {faces}/Ann/Ann_0002.png: not an image that OpenCV can decode (2 bytes)" in text


def test_leakage_by_name_and_by_content(faces, run, tmp_path):
    other = write_folder(tmp_path / "other", {"Dan": 1, "Bob": 1})
    (other / "Dan" / "Dan_0001.png").write_bytes(png(9))
    (other / "Bob" / "Bob_0001.png").write_bytes(png(50))
    write_pack(str(tmp_path / "a.bin"), [png(60), png(2)], [True])
    code, _, report = run(faces, "--validation", other, tmp_path / "a.bin")
    assert code == 2
    assert levels(report, "error") == [
        "1 identities are in both",
        "1 images are in both, byte for byte",
        "1 images are in both, byte for byte",
    ]
    examples = [line["examples"] for line in report["findings"] if line["level"] == "error"]
    assert examples[0] == ["Bob"] and examples[1] == [f"{faces}/Cy/Cy_0002.png = {other}/Dan/Dan_0001.png"]
    assert examples[2] == [f"{faces}/Ann/Ann_0003.png = a.bin: image 1 (pair 0)"]
    assert "who is in one of them is not known by name; compared by content only" in levels(report, "note")
    assert levels(report, "warning") == ["all of its 1 pairs are positive"]


def test_pairs_that_are_sorted_by_kind(faces, run, tmp_path):
    write_pack(str(tmp_path / "a.bin"), map(png, range(100, 140)), [number < 10 for number in range(20)])
    code, _, report = run(faces, "--validation", tmp_path / "a.bin")
    assert code == 1 and levels(report, "warning") == [ONE_KIND]


def test_sets_that_share_nothing_say_so(faces, run, tmp_path):
    other = write_folder(tmp_path / "other", {"Dan": 1, "Eve": 1})
    for number, name in enumerate(("Dan", "Eve")):
        (other / name / f"{name}_0001.png").write_bytes(png(50 + number))
    code, _, report = run(faces, "--validation", other)
    assert code == 0
    assert "no identity is in both, by name" in levels(report, "note")


def test_a_set_that_cannot_be_opened_is_an_error_and_the_others_are_examined(faces, run, tmp_path):
    (tmp_path / "list.txt").write_text("faces/Ann/Ann_0001.png\t0\nfaces/Bob/Bob_0001.png\t2\n")
    (tmp_path / "pairs.csv").write_text("faces/Ann/Ann_0001.png,none.png,1\n")
    code, _, report = run(tmp_path / "list.txt", "--validation", faces, tmp_path / "pairs.csv")
    gap, missing = levels(report, "error")
    assert code == 2 and "no image has label 1 (1 of the labels 0 to 2 are missing)" in gap
    assert "pairs.csv: line 1: none.png does not exist" in missing
    assert list(report["sets"]) == [str(faces)]


def test_the_sets_of_a_config(run, tmp_path):
    write_folder(tmp_path / "faces", {"Ann": 2, "Bob": 2, "Cy": 2, "Dan": 2})
    (tmp_path / "a.yaml").write_text(
        "DataLoader:\n"
        f"  Train:\n    dataset: {{name: ImageFolder, folder: {tmp_path}/faces, classes: [0, 2], size: [12, 10]}}\n"
        f"  Eval:\n    dataset: {{name: ImagePairs, images: {tmp_path}/faces, classes: [2, 4], num_pairs: 4, size: [12, 10]}}\n"
    )
    assert load(tmp_path / "a.yaml").DataLoader.Train.dataset.keywords["classes"] == (0, 2)
    code, _, report = run("-c", tmp_path / "a.yaml")
    assert code == 1 and [*report["sets"]] == ["DataLoader.Train.dataset", "DataLoader.Eval.dataset"]
    (few,) = levels(report, "warning")
    assert few.startswith("verified on 2 identities, 4 pairs: ") and few.endswith("; take pairs of more")
    code, _, report = run("-c", tmp_path / "a.yaml", "-o", "DataLoader.Eval.dataset.classes=[1,4]")
    assert code == 2 and levels(report, "error")[0] == "1 identities are in both"


def test_what_to_examine_must_be_given(capsys):
    assert cli.main(["doctor"]) == 2
    assert (
        capsys.readouterr().err
        == "ERROR give either a set of images to train on, or -c with a config, or --trained with a run\n"
    )


@pytest.mark.parametrize(
    "arguments, line",
    [
        (
            ["faces", "-o", "Head.margin=0.3"],
            "-o: changes keys of a config; give that with -c instead of a set of images",
        ),
        (
            ["-c", "my.yaml", "--validation", "lfw.bin"],
            "--validation: the sets are the config's with -c; name another in ",
        ),
    ],
)
def test_arguments_that_would_be_ignored_are_refused(capsys, arguments, line):
    assert cli.main(["doctor", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"ERROR {line}")


def test_a_set_that_is_given_twice_is_refused(faces, tmp_path, capsys):
    (tmp_path / "link").symlink_to(faces)
    for other in (faces, tmp_path / "link"):
        assert cli.main(["doctor", str(faces), "--validation", str(other)]) == 2
        assert capsys.readouterr().err == (f"ERROR {faces}: is given twice; give each set once\n")


def test_a_file_in_the_place_of_the_reports_folder_is_refused(faces, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for output in (tmp_path / "file", tmp_path / "file/below"):
        assert cli.main(["doctor", str(faces), "--output", str(output)]) == 2
        assert capsys.readouterr().err.startswith(f"ERROR {output}: cannot be written: ")


def test_labelled_images_of_a_config_must_be_of_the_classes_that_are_trained_on(faces, run, tmp_path):
    """For pairs the same people in both are leakage; predicted classes are those of training."""
    val = {
        people: write_folder(tmp_path / people, dict.fromkeys(people.split("-"), 1))
        for people in ("Ann-Bob-Cy", "Bob-Cy")
    }
    texts = {}
    for people, folder in val.items():
        keys = {"Train": faces, "Eval": folder}
        lines = "".join(
            f"  {key}: {{dataset: {{name: ImageFolder, folder: {path}}}}}\n" for key, path in keys.items()
        )
        (tmp_path / "my.yaml").write_text(f"DataLoader:\n{lines}")
        texts[people] = levels(run("-c", tmp_path / "my.yaml")[2], "error")
    assert not any("identities are in both" in text for found in texts.values() for text in found)
    assert "its class 0 is 'Bob', the one trained on is 'Ann'" in texts["Bob-Cy"]
    assert not any("its class" in text for text in texts["Ann-Bob-Cy"])


def test_one_class_is_an_error(run, tmp_path):
    code, _, report = run(write_folder(tmp_path / "faces", {"Ann": 4}))
    assert code == 2 and levels(report, "error") == [
        "has 1 class, and nothing to tell it from; training needs at least 2"
    ]


def test_report_names_some_and_the_json_all(run, tmp_path):
    folder = write_folder(tmp_path / "faces", {"Ann": 9, "Bob": 2})
    for number in range(1, 9):
        (folder / "Ann" / f"Ann_{number:04}.png").write_bytes(b"x")
    _, text, report = run(folder)
    (line,) = (line for line in report["findings"] if line["level"] == "error")
    assert [example.split(": ")[0] for example in line["examples"]] == [
        f"{folder}/Ann/Ann_{number:04}.png" for number in range(1, 9)
    ]
    assert "Ann_0005.png: not an image" in text and "Ann_0006.png: not an image" not in text
    assert "\n    ... and 3 more, all of them in doctor.json\n" in text


def test_an_empty_folder_and_formats_that_are_not_read_do_not_end_the_examination(faces, run):
    for name in ("empty", "Gina"):
        (faces / name).mkdir()
    (faces / "Gina" / "1.GIF").write_bytes(b"GIF89a")
    (faces / "Ann" / "2.heic").write_bytes(b"x")
    (faces / "Ann" / "note.txt").write_bytes(b"x")
    code, _, report = run(faces)
    assert code == 2 and report["sets"][str(faces)]["classes"] == 3
    (error,) = (line for line in report["findings"] if line["level"] == "error")
    assert error["text"].startswith("2 folders without an image") and error["examples"] == ["Gina", "empty"]
    unread, other = (line for line in report["findings"] if line["level"] == "warning")
    assert ".gif, .heic is not read" in unread["text"] and unread["examples"] == [
        "Ann/2.heic",
        "Gina/1.GIF",
    ]
    assert other["examples"] == ["Ann/note.txt"]


@pytest.mark.parametrize("splits, level", [(["train"], "error"), (["train", "val"], "warning")])
def test_a_folder_one_level_too_high_is_pointed_out(run, tmp_path, splits, level):
    for split in splits:
        write_folder(tmp_path / "data" / split, {"Ann": 2, "Bob": 2})
    _, _, report = run(tmp_path / "data")
    (said,) = (text for text in levels(report, level) if "one level further down" in text)
    assert f"in {2 * len(splits)} folders such as train/Ann" in said
    assert said.endswith(f"give {tmp_path}/data/train")


def test_a_flat_folder_of_a_format_that_is_not_read_is_called_so(run, tmp_path):
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "a.gif").write_bytes(b"GIF89a")
    (said,) = levels(run(tmp_path / "flat")[2], "error")
    assert "has files that are not read (.gif)" in said


def test_names_that_are_no_utf_8_or_forge_lines_are_written_escaped(run, tmp_path):
    folder = write_folder(tmp_path / "faces", {"Ann": 2, "Bob": 2})
    bad = os.fsencode(folder) + b"/Ann/J\xf6rg\nERROR all is lost.png"
    with open(bad, "wb") as file:
        file.write(b"x")
    _, text, report = run(folder)
    (line,) = (line for line in report["findings"] if line["level"] == "error")
    assert "/Ann/J\\xf6rg\\nERROR all is lost.png: not an image" in line["examples"][0]
    assert "\nERROR all" not in text and "J\\xf6rg" in text


def test_names_of_identities_cannot_control_the_terminal(run, tmp_path):
    folder = write_folder(tmp_path / "faces", {"\x1b[31mAnn": 2, "Bob\nERROR all is lost": 2})
    people = f"{{name: ImageFolder, folder: {folder}, size: [16, 16]}}"
    (tmp_path / "my.yaml").write_text(
        f"DataLoader: {{Train: {{dataset: [{people}, {people}]}}, Eval: {{dataset: null}}}}"
    )
    _, text, _ = run("-c", tmp_path / "my.yaml")
    assert "\n    \\x1b[31mAnn\n    Bob\\nERROR all is lost\n" in text
    assert "\x1b" not in text


def test_several_sets_to_train_on(run, tmp_path):
    """Each is examined by itself and with each other; labelled images have the classes of all of them."""
    for folder, people in (("one", "Ann Bob"), ("two", "Bob Cy"), ("val", "Ann Bob Cy"), ("wrong", "Ann Cy")):
        write_folder(tmp_path / folder, dict.fromkeys(people.split(), 2))
    keys = (
        f"Train: {{dataset: [{{name: ImageFolder, folder: {tmp_path}/one}}, {{name: ImageFolder, folder: {tmp_path}/two}}]}}",
        f"Eval: {{dataset: {{name: ImageFolder, folder: {tmp_path}/val}}}}",
    )
    (tmp_path / "my.yaml").write_text(f"DataLoader:\n  {keys[0]}\n  {keys[1]}\n")
    _, _, report = run("-c", tmp_path / "my.yaml")
    train = ["DataLoader.Train.dataset.0", "DataLoader.Train.dataset.1"]
    assert [*report["sets"]] == [*train, "DataLoader.Eval.dataset"]
    (both,) = (line for line in report["findings"] if "by name" in line["text"])
    assert (both["set"], both["text"], both["examples"]) == (
        " and ".join(train),
        "1 identities are in both, by name",
        ["Bob"],
    )
    assert not any("its class" in text for text in levels(report, "error"))
    _, _, report = run(
        "-c", tmp_path / "my.yaml", "-o", f"DataLoader.Eval.dataset.folder={tmp_path / 'wrong'}"
    )
    assert "its class 1 is 'Cy', the one trained on is 'Bob'" in levels(report, "error")
    _, _, report = run("-c", tmp_path / "my.yaml", "-o", "DataLoader.Train.dataset.1.channels=grey")
    assert any("Train.dataset.1: its samples have shape" in text for text in levels(report, "error"))
