"""plsc init: what it sees in a folder, what it writes, that this trains, and what it refuses."""

import pickle

import cv2
import numpy as np
import pytest

from plsc import cli
from plsc.apps.curate.init import DataSummary, recommend
from plsc.config import load
from plsc.data.folder import ImageFolder
from plsc.entry import Entry
from tests.helpers.image_files import write_rec
from tests.helpers.tiny_runs import rows

SEEN = DataSummary(pictures=280, classes=35, height=112, width=112, grey=False, hold_out=0.5, trained=140)
FOLDER = "ImageFolder", "people"


def fill(folder, classes, pictures=4, height=20, width=20, grey=False, below=""):
    draw = np.random.default_rng(0)
    for number in range(classes):
        of_class = folder / below / f"class {number}"
        of_class.mkdir(parents=True)
        for picture in range(pictures):
            pixels = draw.integers(0, 256, (height, width, 1 if grey else 3), np.uint8)
            cv2.imwrite(str(of_class / f"{picture}.png"), pixels)
    return folder


def init(*words):
    return cli.main(["init", *words])


@pytest.mark.parametrize(
    ("classes", "pictures", "grey", "hold_out"),
    [(120, 4, True, 0.1), (8, 4, False, 0.5), (4, 4, False, None), (12, 1, False, None)],
)
def test_what_it_writes_trains_and_verifies(tmp_path, monkeypatch, capsys, classes, pictures, grey, hold_out):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "things", classes, pictures, grey=grey)
    assert init("things") == 0
    said = capsys.readouterr().out
    assert f"things.yaml: for {pictures * classes} pictures of {classes} classes, 20 x 20; next:\n" in said
    assert "  plsc doctor -c things.yaml\n  plsc train -c things.yaml --ranks 2\n" in said
    of_run = "" if hold_out is None else "-c output/things "
    assert said.endswith(f"  plsc gallery build people.gallery {of_run}things\n")
    assert ("a gallery by this network would name nobody" in said) is (hold_out is None)
    cfg = load("things.yaml")
    train = cfg.DataLoader.Train.dataset.model_extra
    assert train["size"] == (32, 32) and train.get("hold_out") == hold_out
    assert train.get("channels") == ("grey" if grey else None) and bool(train.get("flip")) is not grey
    assert ("nothing is verified" in said) is (hold_out is None)
    held = {0.1: "16 of 120 classes are held out", 0.5: "5 of 8 classes are held out"}.get(hold_out)
    written = (tmp_path / "things.yaml").read_text()
    assert ("held out" in said) is ("held out" in written) is (held is not None)
    if held:
        assert f"{held}: the network is not trained on them" in said and f"\n# {held}: " in written
    of_two_ranks = 2 * cfg.DataLoader.Train.batch_size  # of 8 classes 5 are held out, more than a half
    assert of_two_ranks <= len(ImageFolder("things", hold_out=hold_out or 0))
    result = Entry("things.yaml", ["Global.max_steps=2"]).train()
    assert rows(tmp_path / "output/things")[-1]["step"] == 2
    assert (result["accuracy"] is None) is (hold_out is None)


def test_a_folder_with_train_rec_as_arcface_torch_has_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ms1m").mkdir()
    write_rec(tmp_path / "ms1m/train.rec", [number // 6 for number in range(60)])
    assert init("ms1m") == 0
    said = capsys.readouterr().out
    assert said.endswith("  plsc train -c ms1m.yaml --ranks 2\n  plsc export -c output/ms1m\n")
    assert load("ms1m.yaml").DataLoader.Train.dataset.model_extra["path"] == "ms1m"
    assert cli.main(["train", "-c", "ms1m.yaml", "--dry-run"]) == 0
    assert cli.main(["doctor", "-c", "ms1m.yaml"]) != 2
    assert 0 <= Entry("ms1m.yaml", ["Global.max_steps=2"]).train()["accuracy"] <= 1


def test_packs_beside_train_rec_verify(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ms1m").mkdir()
    write_rec(tmp_path / "ms1m/train.rec", [number // 6 for number in range(60)])
    drawn = np.random.default_rng(0).integers(0, 256, (40, 112, 112, 3), np.uint8)
    images = [cv2.imencode(".jpg", pixels)[1].tobytes() for pixels in drawn]
    for name in ("agedb_30", "lfw"):
        (tmp_path / f"ms1m/{name}.bin").write_bytes(pickle.dumps((images, [True, False] * 10)))
    assert init("ms1m") == 0
    assert "it verifies on lfw.bin, agedb_30.bin\n" in capsys.readouterr().out
    loader = load("ms1m.yaml").DataLoader
    assert loader.Eval.dataset.model_extra["path"] == "ms1m/lfw.bin"
    assert loader.Eval.more["agedb_30"].model_extra["path"] == "ms1m/agedb_30.bin"
    assert loader.Train.dataset.model_extra["size"] == (112, 112)
    assert "hold_out" not in loader.Train.dataset.model_extra
    assert "60 images of 10 classes" in Entry("ms1m.yaml").dry_run(1)


def test_the_next_line_trains_three_pictures_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "few", 3, pictures=1)
    assert init("few") == 0
    assert "\n  plsc train -c few.yaml\n" in capsys.readouterr().out
    Entry("few.yaml").dry_run(1)


def test_the_config_has_the_folders_whole_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("shoes.2023", "shoes.2024"):
        fill(tmp_path / name, 3)
        assert init(name) == 0
        assert load(f"{name}.yaml").Global.output_dir == f"output/{name}"


def test_a_config_in_another_folder_finds_the_pictures(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    fill(tmp_path / "few", 2)
    monkeypatch.chdir(tmp_path)
    assert init("few", "--output", "other/few.yaml") == 0
    monkeypatch.chdir("other")
    load("few.yaml").check_data()


def test_a_folder_one_level_too_high_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "high", 3, below="people")
    assert init("high") == 2
    assert " directly in it: people; remove it, add images, or name the folder" in capsys.readouterr().err


def test_all_classes_are_trained_if_the_config_is_changed_as_init_tells(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "things", 8)
    assert init("things") == 0
    keys = "set DataLoader.Train.dataset.hold_out to 0 and DataLoader.Eval.dataset to null."
    assert keys in capsys.readouterr().out
    overrides = {"DataLoader.Train.dataset.hold_out": 0, "DataLoader.Eval.dataset": None}
    assert "32 images of 8 classes" in Entry("things.yaml", overrides).dry_run(1)


def test_the_parts_of_a_data_set_are_used_as_the_message_tells(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for part in ("train", "validation"):
        fill(tmp_path / "hf", 8, below=part)
    assert init("hf") == 2
    assert capsys.readouterr().err.endswith(
        "train, validation; if these are a data set's parts, name the folder hf/train; to evaluate on the "
        "same classes in hf/validation, set DataLoader.Eval.dataset to {name: ImageFolder, folder: "
        "hf/validation} with the size and channels of DataLoader.Train.dataset, and the latter's hold_out to "
        "0\n"
    )
    assert init("hf/train") == 0
    evaluate = "DataLoader.Eval.dataset={name: ImageFolder, folder: hf/validation, size: [32, 32]}"
    overrides = [evaluate, "DataLoader.Train.dataset.hold_out=0", "Global.max_steps=2"]
    assert 0 <= Entry("train.yaml", overrides).train()["accuracy"] <= 1
    (tmp_path / "hf/test").mkdir()
    assert init("hf") == 2  # of several parts the validation set is named
    assert "classes in hf/validation, set" in capsys.readouterr().err
    (tmp_path / "hf/test").rmdir()
    (tmp_path / "hf/validation").rename(tmp_path / "other")
    assert init("hf") == 2
    assert capsys.readouterr().err.endswith(
        "it: train; if these are a data set's parts, name the folder hf/train\n"
    )
    (tmp_path / "other").rename(tmp_path / "hf/other")
    assert init("hf") == 2
    assert "directly in it: other, train; remove it, add images, or" in capsys.readouterr().err


def test_damaged_pictures_are_skipped_and_a_file_is_never_overwritten(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "things", 20, pictures=6)
    (tmp_path / "things/class 3/0.png").write_bytes(b"no picture")
    assert init("things", "--output", "mine.yaml") == 0
    (tmp_path / "things").rename(tmp_path / "my things")
    assert init("my things") == 0
    said = capsys.readouterr().out
    assert "plsc train -c 'my things.yaml' --" in said
    assert "plsc gallery build people.gallery -c 'output/my things' 'my things'\n" in said
    (tmp_path / "my things").rename(tmp_path / "things")
    written = (tmp_path / "mine.yaml").read_text()
    assert init("things", "--output", "mine.yaml") == 2
    assert (
        "mine.yaml: exists already" in capsys.readouterr().err
        and (tmp_path / "mine.yaml").read_text() == written
    )
    assert load("mine.yaml").Global.output_dir == "output/mine"
    monkeypatch.setattr("plsc.apps.curate.init.inspect_data", None)  # nothing is inspected
    monkeypatch.chdir(tmp_path / "things")
    assert init(".") == 2
    assert (
        "ERROR .: a run would write output/things among the set's folders; start in"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("change", "key", "value"),
    [
        ({"pictures": 1_000}, "Global.epochs", 40),
        ({}, "Global.max_steps", 300),
        ({"pictures": 30_000}, "Model.name", "IResNet18"),
        ({"pictures": 3_000_000, "classes": 90_000}, "Model.name", "IResNet50"),
        ({"hold_out": None}, "DataLoader.Eval.dataset", None),
        ({"pictures": 24}, "Global.eval_every", 7),
        ({"pictures": 6_671, "classes": 1_184}, "DataLoader.Train.batch_size", 64),
    ],
)
def test_what_follows_from_what(change, key, value):
    seen = SEEN._replace(trained=change.get("pictures", 280) // 2)._replace(**change)
    values = recommend(seen, *FOLDER, "output/people")
    assert load(values).DataLoader.Train.dataset.name == "ImageFolder"
    for part in key.split("."):
        values = values[part]
    assert values == value


def test_pictures_keep_their_shape():
    for height, width, size in ((256, 128, [88, 48]), (110, 112, [64, 64])):
        values = recommend(SEEN._replace(height=height, width=width), *FOLDER, "out")
        assert values["DataLoader"]["Train"]["dataset"]["size"] == size
