"""A run is used from any folder, and without what only its training needed."""

import sys

import cv2
import numpy as np
import pytest

from plsc.config import load
from plsc.entry import Entry
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import TINY, Linear

MODULE = """from plsc.data import ImageFolder
from plsc.training.part import Part

class Pictures(ImageFolder):
    pass

class Nothing(Part):
    name = "nothing"

    def update(self, run):
        pass
"""
CONFIG = """
Global: {max_steps: 2, output_dir: out}
Model: {embedding_size: 8, widths: [4, 6], blocks: [0, 1]}
Parts: ["travelling:Nothing"]
DataLoader:
  Train: {dataset: {name: "travelling:Pictures", folder: people, size: 16}, batch_size: 6}
  Eval: {dataset: {name: ImageFolder, folder: people, size: 16}}
"""
PIXELS = np.random.default_rng(0).integers(0, 256, (3, 3, 16, 16), np.uint8)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with a config, its module, its pictures, and the run that was trained there."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    home = tmp_path / "home"
    for name in ("ann", "bob"):
        (home / "people" / name).mkdir(parents=True)
        for number in range(3):
            cv2.imwrite(str(home / "people" / name / f"{number}.png"), PIXELS[number].transpose(1, 2, 0))
    (home / "configs").mkdir()
    (home / "configs" / "travelling.py").write_text(MODULE)
    (home / "configs" / "mine.yaml").write_text(CONFIG)
    monkeypatch.chdir(home)
    Entry("configs/mine.yaml").train()
    forget()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    yield home
    forget()


def forget():
    """Forget the module, as a new process does."""
    sys.modules.pop("travelling", None)
    sys.path[:] = [folder for folder in sys.path if not folder.endswith("configs")]


def test_a_run_finds_its_data_and_modules_from_another_folder(home):
    config = load(home / "out")
    assert config.Global.folders == [str(home), str(home / "configs")]
    assert config.DataLoader.Train.dataset.model_extra["folder"] == str(home / "people")
    assert Entry(home / "out").evaluate()["images"] == 6
    Entry(home / "out", ["Global.max_steps=3", "Global.resume=true"]).train()
    assert load(home / "out").Global.folders == config.Global.folders


def test_only_what_needs_data_and_classes_asks_for_them(home):
    expected, _ = Entry(home / "out").predict(PIXELS)
    forget()
    moved = home.rename(home.with_name("moved"))
    (moved / "configs" / "travelling.py").unlink()
    run = Entry(moved / "out", ["Export.formats=[paddle]"])
    assert np.array_equal(run.predict(PIXELS)[0], expected)
    assert run.export()["files"]
    assert "DataLoader.Eval.dataset.folder: 'people' is not a folder" in refusal(run.evaluate)
    again = Entry(moved / "out", ["Global.resume=true", "DataLoader.Eval.dataset=null"])
    assert "cannot import travelling: " in refusal(again.train)


def test_a_network_that_was_given_is_asked_for(tmp_path):
    keys = [f"Global.output_dir={tmp_path}", "Global.max_steps=1", "DataLoader.Eval.dataset=null"]
    Entry(TINY, keys, model=Linear(8, (1, 12, 10))).train()
    pixels = PIXELS[:, :1, :12, :10]
    words = (
        f"network given as model=, or the class has changed; give the network in Python, Entry('{tmp_path}', "
    )
    assert words in refusal(Entry(tmp_path).predict, pixels)
    assert "SmallResNet" not in refusal(Entry(tmp_path, model=Linear(8, (1, 12, 9))).predict, pixels)
    Entry(tmp_path, model=Linear(8, (1, 12, 10))).predict(pixels)
