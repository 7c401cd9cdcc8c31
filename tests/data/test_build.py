"""Tests of the data sets that a config names, as they are built to train on."""

from pathlib import Path

import numpy as np
import pytest

from plsc.config import load
from plsc.errors import UserError
from tests.helpers.datasets import dataset_of


def written(text):
    Path("a.yaml").write_text(text)
    return "a.yaml"


def test_the_sets_of_a_list_are_built_and_joined(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "DataLoader: {Train: {dataset: [{name: Synthetic, num_classes: 3},\n{name: Synthetic, %s}]}}"
    data = dataset_of(load(written(text % "num_classes: 2")))
    assert data.num_classes == 5 and len(data) == 50
    assert not np.array_equal(data.sample(0, 0), data.sample(30, 0))  # random numbers of its own
    with pytest.raises(UserError, match=r"^a.yaml:2: DataLoader.Train.dataset.1: its samples have shape"):
        dataset_of(load(written(text % "image_shape: [1, 8, 8]")))
