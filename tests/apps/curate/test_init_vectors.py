"""plsc init for x.npy and y.npy: what it writes trains, and what it refuses."""

import numpy as np

from plsc import cli
from plsc.config import load
from plsc.entry import Entry


def write(folder, classes=120, numbers=24, names=True, shape=None):
    folder.mkdir()
    draw = np.random.default_rng(0)
    owners = np.repeat(np.arange(classes), 4)
    centres = draw.normal(size=(classes, numbers))
    samples = 30 + 5 * (centres[owners] + 0.3 * draw.normal(size=(len(owners), numbers)))
    np.save(folder / "x.npy", samples.astype(np.float32).reshape(shape or samples.shape))
    np.save(folder / "y.npy", np.array([f"p{owner:03}" for owner in owners]) if names else owners)
    return folder


def test_what_it_writes_trains_and_verifies(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "voices")
    assert cli.main(["init", "voices/x.npy", "--output", "of a file.yaml"]) == 0
    assert "plsc train -c 'of a file.yaml' --ranks 2\n" in capsys.readouterr().out
    assert cli.main(["init", "voices"]) == 0
    said = capsys.readouterr().out
    assert "voices.yaml: for 480 vectors of 24 numbers, 120 classes; next:\n" in said
    assert "  plsc train -c voices.yaml --ranks 2\n" in said
    cfg = load("voices.yaml")
    assert load("of a file.yaml").DataLoader == cfg.DataLoader
    train = cfg.DataLoader.Train.dataset.keywords
    assert train["samples"] == "voices/x.npy" and train["labels"] == "voices/y.npy"
    assert train["hold_out"] == 0.1 and cfg.Model.name == "MLP"
    values = (np.load("voices/x.npy") - train["mean"]) * train["scale"]
    assert abs(values.mean()) < 1e-3 and abs(values.std() - 1) < 1e-3
    result = Entry("voices.yaml", ["Global.max_steps=60", "Global.output_dir=run"]).train()
    assert result["accuracy"] > 0.9, "the classes are far apart"


def test_few_classes_are_all_trained_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "few", classes=3, names=False)
    assert cli.main(["init", "few"]) == 0
    assert "3 classes are too few to hold some out: nothing is verified" in capsys.readouterr().out
    assert load("few.yaml").DataLoader.Eval.dataset is None


def test_mistakes_have_a_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = write(tmp_path / "pictures", shape=(480, 4, 6))
    assert cli.main(["init", "pictures"]) == 2
    assert (
        "x.npy: has samples of shape [4, 6], and a network is chosen for vectors only"
        in capsys.readouterr().err
    )
    np.save(folder / "x.npy", np.ones((480, 3), np.float32))
    assert cli.main(["init", "pictures"]) == 2
    assert "x.npy: all numbers are equal, or some are not finite" in capsys.readouterr().err
    (folder / "y.npy").unlink()
    assert cli.main(["init", "pictures"]) == 2
    assert (
        "y.npy: does not exist; write a name or a number for each row of pictures/x.npy"
        in capsys.readouterr().err
    )
