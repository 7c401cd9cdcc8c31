"""Tests of the data sets that a config names, as they are built to train on."""

from pathlib import Path

import numpy as np

from plsc.config import load
from plsc.data.build import build_dataset
from plsc.data.synthetic import Synthetic
from tests.helpers.datasets import dataset_of
from tests.helpers.refusals import refusal


def written(text):
    Path("a.yaml").write_text(text)
    return "a.yaml"


class Own(Synthetic):
    def __init__(self, names: list[str]):
        super().__init__(2)
        self.identities = names
        if not names:
            del self.labels


def test_a_set_of_ones_own_may_name_its_classes_in_a_list_and_must_have_labels():
    own = 'DataLoader.Train.dataset={name: "tests.data.test_build:Own", names: %s}'
    assert dataset_of(load(None, [own % "[Ann, Bob]"])).class_names == ["Ann", "Bob"]
    assert "Own.labels: must be an array int64 [N], got NoneType" in refusal(
        build_dataset, load(None, [own % "[]"]).DataLoader, 0
    )


def test_the_sets_of_a_list_are_built_and_joined(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "DataLoader: {Train: {dataset: [{name: Synthetic, num_classes: 3},\n{name: Synthetic, %s}]}}"
    data = dataset_of(load(written(text % "num_classes: 2")))
    assert data.num_classes == 5 and len(data) == 50
    assert not np.array_equal(data.sample(0, 0), data.sample(30, 0))  # random numbers of its own
    assert refusal(dataset_of, load(written(text % "image_shape: [1, 8, 8]"))).startswith(
        "a.yaml:2: DataLoader.Train.dataset.1: its samples have shape"
    )
