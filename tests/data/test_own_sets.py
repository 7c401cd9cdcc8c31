"""Data sets of a user's own: errors in their code, and augmentation by another package."""

import cv2
import numpy as np
import pytest

from plsc.config import load
from plsc.data import ImageFolder
from plsc.data.build import build_dataset
from plsc.data.synthetic import Synthetic
from tests.helpers.refusals import refusal

HERE = "tests.data.test_own_sets"


class Lost(Synthetic):
    def __init__(self, path: str = "gone.npy", **more):
        super().__init__(**more)
        np.load(path)


class Inverted(ImageFolder):
    """An augmentation of its own with a key of its own, as in docs/extend.md."""

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


@pytest.mark.parametrize("invert, pixel", [(0.0, 200), (1.0, 55)])
def test_an_augmentation_of_ones_own_changes_the_pictures(tmp_path, invert, pixel):
    for name in "ab":
        (tmp_path / name).mkdir()
        cv2.imwrite(str(tmp_path / name / "0.png"), np.full((8, 8, 3), 200, np.uint8))
    dataset = f'{{name: "{HERE}:Inverted", folder: {tmp_path}, size: 8, invert: {invert}}}'
    data = build_dataset(load({}, [f"DataLoader.Train.dataset={dataset}"]).DataLoader, 0)
    assert (data.sample(0, epoch=0) == pixel).all()
