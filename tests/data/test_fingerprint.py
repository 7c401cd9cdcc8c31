"""Fingerprints of data sets: what changes them, and what does not."""

import cv2
import numpy as np
import pytest

from plsc.data.fingerprint import content, names_and_labels
from plsc.data.image_list import ImageList
from plsc.data.pairs import PairList
from plsc.data.synthetic import Synthetic
from plsc.evaluation.sets import eval_set


@pytest.fixture
def folder(tmp_path):
    for number, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (4, 8, 8), np.uint8)):
        cv2.imwrite(str(tmp_path / f"{number}.png"), pixels)
    (tmp_path / "pairs.txt").write_text("0.png\t1.png\t1\n2.png\t3.png\t0\n")
    (tmp_path / "list.txt").write_text("0.png\t0\n1.png\t0\n2.png\t1\n3.png\t1\n")
    return tmp_path


def content_of(data):
    known = eval_set(data)
    return content(data, known.count, known.arrays())


def pairs(folder):
    return content_of(PairList(str(folder / "pairs.txt"), size=(8, 8), channels="grey"))


def training(folder):
    return names_and_labels(ImageList(str(folder / "list.txt"), size=(8, 8), channels="grey"))


def test_a_moved_set_is_the_same(folder):
    before = pairs(folder), training(folder)
    moved = folder.rename(folder.with_name("moved"))
    assert (pairs(moved), training(moved)) == before


@pytest.mark.parametrize(
    "text",
    [
        "0.png\t1.png\t0\n2.png\t3.png\t0\n",
        "0.png\t2.png\t1\n1.png\t3.png\t0\n",
        "0.png\t1.png\t1\n",
    ],
)
def test_other_pairs_are_another_set(folder, text):
    before = pairs(folder)
    (folder / "pairs.txt").write_text(text)
    assert pairs(folder) != before


def test_another_picture_is_another_set(folder):
    before = pairs(folder)
    cv2.imwrite(str(folder / "1.png"), np.zeros((8, 8), np.uint8))
    assert pairs(folder) != before


@pytest.mark.parametrize(
    "text", ["0.png\t0\n1.png\t1\n2.png\t1\n3.png\t1\n", "0.png\t0\n1.png\t0\n2.png\t1\n"]
)
def test_other_names_or_labels_are_another_training_set(folder, text):
    before = training(folder)
    (folder / "list.txt").write_text(text)
    assert training(folder) != before


def test_samples_that_are_no_files_are_hashed_too():
    one, other = (content_of(Synthetic(3, 2, (1, 4, 4), seed=seed)) for seed in (0, 1))
    assert one != other == content_of(Synthetic(3, 2, (1, 4, 4), seed=1))
