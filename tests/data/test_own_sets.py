"""Data sets of a user's own: errors in their code, and augmentation by another package."""

import re

import cv2
import numpy as np
import pytest

from plsc import cli
from plsc.checkpoint.store import newest_step
from plsc.config import load
from plsc.data import ImageFolder
from plsc.data.build import build_dataset
from plsc.data.synthetic import Synthetic
from tests.helpers.launch import run_forked
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import TINY

HERE = "tests.data.test_own_sets"


class Lost(Synthetic):
    def __init__(self, path: str = "gone.npy", **more):
        super().__init__(**more)
        np.load(path)


class Inverted(ImageFolder):
    """A user's augmentation with its own key, as in docs/extend.md."""

    def __init__(self, folder: str, invert: float = 0.5, **options):
        super().__init__(folder, **options)
        self.augment = lambda pixels, rng: 255 - pixels if rng.random() < invert else pixels


@pytest.mark.parametrize(
    "keys, text",
    [
        ("", "FileNotFoundError in "),
        (", strenght: 2", "TypeError in "),
    ],
)
def test_an_error_in_a_data_set_is_one_line_with_its_class(keys, text):
    section = load({}, [f'DataLoader.Train.dataset={{name: "{HERE}:Lost"{keys}}}']).DataLoader
    assert refusal(build_dataset, section, 0).startswith(f"DataLoader.Train.dataset: {HERE}:Lost: {text}")


class Faulty(Synthetic):
    """Its transform fails for sample 70, after so many times; the first is before the first step."""

    def __init__(self, times: int, seed: int = 0):
        super().__init__(23, 5, (1, 12, 10), seed)
        self.times = times

    def sample(self, index, epoch):
        return self.transform(super().sample(index, epoch), index)

    def transform(self, image, index):
        self.times -= index == 70
        if self.times < 0:
            raise ValueError(f"height and width must be above 0\n  at {index}")
        return image

    def name(self, index):
        return ["a", "b", "c"][index]  # of few samples


LINE = r"Faulty.sample\({}\) \(number {}\): ValueError in transform, .*test_own_sets.py:\d+: height and .* 0"


@pytest.mark.parametrize("times, num_workers", [(0, 0), (1, 0), (1, 2)])
def test_an_error_in_a_sample_ends_a_training_by_one_line(tmp_path, capsys, times, num_workers):
    dataset = f'DataLoader.Train.dataset={{name: "{HERE}:Faulty", times: {times}}}'
    run = ["train", "-c", str(TINY), "-o", f"Global.output_dir={tmp_path}", dataset]
    assert cli.main([*run, f"DataLoader.Train.num_workers={num_workers}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(f"ERROR {LINE.format(70, 70)}", line)


@pytest.mark.parametrize("times", [0, 1])
def test_it_ends_two_ranks_by_the_same_line(tmp_path, times):
    """The rank that meets the sample prints it, and the other ends without a traceback."""
    dataset = f'DataLoader.Train.dataset={{name: "{HERE}:Faulty", times: {times}}}'
    words = ["train", "--ranks", "2", "-c", TINY, "-o", "Global.output_dir=out", dataset]
    done = run_forked("-m", "plsc", *words, cwd=tmp_path, check=False, timeout=60)
    said = done.stdout + done.stderr
    (line,) = [line for line in said.splitlines() if "ERROR" in line]
    assert done.returncode == 2 and re.search(LINE.format(70, 70) + "$", line)
    assert "Traceback" not in said and "restarting from" not in said


@pytest.fixture
def two_classes(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        cv2.imwrite(str(tmp_path / name / "0.png"), np.full((8, 8, 3), 200, np.uint8))
    return tmp_path


@pytest.mark.parametrize("channels", ["RGB", "BGR", "grey"])
@pytest.mark.parametrize(
    "change, got",
    [
        (lambda pixels: pixels.astype(np.float32), "float32 [8, 8"),
        (lambda pixels: pixels.astype(np.int64), "int64 [8, 8"),
        (lambda pixels: pixels[:4], "uint8 [4, 8"),
        (lambda pixels: pixels[np.newaxis], "uint8 [1, 8, 8"),
        (lambda pixels: None, "NoneType"),
    ],
)
def test_what_an_augmentation_of_ones_own_returns_is_checked(two_classes, channels, change, got):
    """cv2.split would ignore its destination if the type differed, and the sample would have other bytes."""
    data = ImageFolder(str(two_classes), size=8, channels=channels)
    data.augment = lambda pixels, rng: change(pixels)
    shape = [8, 8] if channels == "grey" else [8, 8, 3]
    line = refusal(data.sample, 0, epoch=0)
    assert line.startswith(
        f"ImageFolder.augment(...) ({two_classes}/a/0.png): must be an array uint8 {shape}, got {got}"
    )


@pytest.mark.parametrize("invert, pixel", [(0.0, 200), (1.0, 55)])
def test_an_augmentation_of_ones_own_changes_the_pictures(two_classes, invert, pixel):
    dataset = f'{{name: "{HERE}:Inverted", folder: {two_classes}, size: 8, invert: {invert}}}'
    data = build_dataset(load({}, [f"DataLoader.Train.dataset={dataset}"]).DataLoader, 0)
    assert (data.sample(0, epoch=0) == pixel).all()


class Numbered(Synthetic):
    """A set with NumPy's number of classes, names, and a seed of its own."""

    def __init__(self, names: int = 23, seed: int = 7, equal: bool = False):
        super().__init__(23, 5, (1, 12, 10))
        self.num_classes = self.labels.max() + 1
        self.identities = [f"speaker {0 if equal else number}" for number in range(names)]
        self.given = seed


def numbered(keys, *more, part="Train"):
    section = load(TINY, [f'DataLoader.{part}.dataset={{name: "{HERE}:Numbered"{keys}}}', *more])
    return build_dataset(section.DataLoader, section.Global.seed, f"DataLoader.{part}.dataset")


def test_a_set_has_the_seed_of_the_run_or_its_own():
    assert numbered("", "Global.seed=42").given == 42
    assert numbered(", seed: 5", "Global.seed=42").given == 5


@pytest.mark.parametrize(
    "keys, text",
    [
        (
            ", names: 115",
            "must have one name for each class, in the order of the class numbers; got 115 for 23",
        ),
        (
            ", names: 22",
            "must have one name for each class, in the order of the class numbers; got 22 for 23",
        ),
        (", equal: true", "two classes have the same name, speaker 0"),
    ],
)
@pytest.mark.parametrize("part", ["Train", "Eval"])
def test_a_set_names_each_class_once(keys, text, part):
    assert f"Numbered.identities: {text}" in refusal(numbered, keys, part=part)


def test_numpys_number_of_classes_is_saved(tmp_path):
    dataset = f'DataLoader.Train.dataset={{name: "{HERE}:Numbered"}}'
    run = ["train", "-c", str(TINY), "-o", f"Global.output_dir={tmp_path}", dataset, "Global.max_steps=1"]
    assert cli.main(run) == 0
    assert newest_step(tmp_path / "checkpoints") == 1
