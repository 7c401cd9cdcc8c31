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
    text = "DataLoader: {Train: {dataset: [{name: Synthetic, num_classes: 3, head: own},\n{name: Synthetic, num_classes: 2, head: own}]}}"
    data = dataset_of(load(written(text)))
    assert (data.num_classes, data.ranges) == (5, [(0, 3), (3, 5)])
    assert not np.array_equal(
        data.sample(0, 0), data.sample(int(data.starts[1]), 0)
    )  # random numbers of its own
    alone = load(written(text.replace("{name: Synthetic, num_classes: 2, head: own}", "")))
    assert type(dataset_of(alone)).__name__ == "Synthetic"
    with pytest.raises(
        UserError, match=r"^a.yaml:1: DataLoader.Train.dataset.0: its identities have no names"
    ):
        dataset_of(load(written(text.replace("head: own", "head: merge"))))
