"""Tests of the data sets that a config names, as they are built to train on."""

from pathlib import Path

import numpy as np
import pytest

from plsc.config import ConfigError, load
from plsc.data.build import build_dataset
from plsc.data.dataset import PairSet
from plsc.data.synthetic import Synthetic
from plsc.evaluation.sets import build_sets
from tests.helpers.datasets import dataset_of
from tests.helpers.refusals import refusal


def written(text):
    Path("a.yaml").write_text(text)
    return "a.yaml"


class Own(Synthetic):
    def __init__(self, names: list[str], labelled: bool = True):
        super().__init__(2)
        self.identities = names
        if not labelled:
            del self.labels


def test_a_set_of_ones_own_may_name_its_classes_in_a_list_and_must_have_labels():
    own = 'DataLoader.Train.dataset={name: "tests.data.test_build:Own", names: %s}'
    assert dataset_of(load(None, [own % "[Ann, Bob]"])).class_names == ["Ann", "Bob"]
    assert refusal(build_dataset, load(None, [own % "[Ann, Bob], labelled: false"]).DataLoader, 0) == (
        "DataLoader.Train.dataset: Own.labels: must be an array int64 [N], got NoneType"
    )


class Uncounted(Synthetic):
    def __init__(self, count: float | None = None):
        super().__init__(2)
        del self.num_classes
        if count is not None:
            self.num_classes = count


class Pairs(PairSet):
    def image(self, index):
        raise NotImplementedError


def test_what_a_set_of_ones_own_does_not_set_is_told():
    for count, got in (("null", "it is not set"), ("2.5", "got 2.5"), ("0.0", "got 0.0")):
        for key in ("DataLoader.Train.dataset", "DataLoader.Eval.dataset"):
            section = load(
                None, [f'{key}={{name: "tests.data.test_build:Uncounted", count: {count}}}']
            ).DataLoader
            call = (build_dataset, section, 0) if "Train" in key else (build_sets, section, 0, None, 0, None)
            line = f"{key}: Uncounted.num_classes: must be the number of classes, 1 or more ({got})"
            if count == "null" and "Eval" in key:
                line = f"{key}: Uncounted: does not set num_classes; a Dataset must set"
            assert refusal(*call).startswith(line)
    section = load(None, ['DataLoader.Eval.dataset={name: "tests.data.test_build:Pairs"}']).DataLoader
    said = refusal(build_sets, section, 0, None, 0, None)
    assert said.startswith("DataLoader.Eval.dataset: Pairs: does not set ")
    with pytest.raises(ConfigError, match=r"; write own:X, without \.py$"):
        load(None, ["DataLoader.Train.dataset.name=own.py:X"])


def test_the_sets_of_a_list_are_built_and_joined(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "DataLoader: {Train: {dataset: [{name: Synthetic, num_classes: 3},\n{name: Synthetic, %s}]}}"
    data = dataset_of(load(written(text % "num_classes: 2")))
    assert data.num_classes == 5 and len(data) == 50
    assert not np.array_equal(data.sample(0, 0), data.sample(30, 0))  # random numbers of its own
    assert refusal(dataset_of, load(written(text % "image_shape: [1, 8, 8]"))).startswith(
        "a.yaml:2: DataLoader.Train.dataset.1: its samples have shape"
    )
