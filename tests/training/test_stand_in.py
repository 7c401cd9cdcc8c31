"""Tests of plsc/training/stand_in.py, and dry runs of all recipes on stand-in data."""

import functools
import re

import pytest

from plsc.config import load
from plsc.entry import Entry
from plsc.errors import UserError
from plsc.training.stand_in import stand_in
from tests.helpers.datasets import dataset_of
from tests.helpers.launch import ROOT
from tests.helpers.undrawn import undrawn

RECIPES = sorted((ROOT / "configs" / "recipes").glob("*.yaml"))
IMAGES = {"name": "RecImages", "path": "nowhere/train.rec", "size": [24, 16], "channels": "BGR"}
STATED = {
    "DataLoader.Train.dataset": IMAGES,
    "DataLoader.Train.num_classes": 7,
    "DataLoader.Train.num_samples": 100,
}


@functools.cache
def backbone(**section):
    """Build a network of the recipes once."""
    cfg = load().edit({"Model": section}).Model
    with undrawn():
        return cfg.build(embedding_size=cfg.embedding_size, image_shape=(3, 112, 112))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_passes_a_dry_run_on_stand_in_data(path):
    header = re.match(
        r"# .*?: ([\d,]+) images of ([\d,]+) identities\. (\d+) GPUs, ([\d,]+) images a step\. Not run here\.\n# Source: ",
        path.read_text(),
    )
    images, classes, ranks, batch = header.groups()
    cfg = stand_in(load(path))
    said = Entry(cfg, model=backbone(**cfg.Model.model_dump())).dry_run()
    assert f"plan: ranks    {ranks}, global batch {batch.replace(',', '')} (" in said
    assert f"plan: data     {images} images of {classes} classes, shape [3, 112, 112]" in said


def test_there_are_recipes():
    assert len(RECIPES) >= 8


def test_noise_of_the_stated_counts_and_shape_stands_in_for_absent_files():
    pairs = {"name": "BinPairs", "path": "nowhere/lfw.bin"}
    cfg = load().edit({**STATED, "DataLoader.Eval.dataset": pairs, "DataLoader.Eval.more": {"again": pairs}})
    data = dataset_of(stand_in(cfg))
    assert (data.num_classes, len(data), data.image_shape) == (7, 100, (3, 24, 16))
    assert set(data.labels) == set(range(7)) and data.images(0, 1).shape == (1, 3, 24, 16)
    evaluation = stand_in(cfg).DataLoader.Eval
    assert (evaluation.dataset, evaluation.more) == (None, {})
    assert stand_in(cfg).source("DataLoader.Train.dataset.num_samples") == "--stand-in"
    for asked, taken in ((None, "none"), ("name", "none"), ("number", "number")):
        start = cfg.edit({"Global.init_from": "before", "Global.keep_centres": asked})
        assert stand_in(start).Global.keep_centres == taken


@pytest.mark.parametrize(
    "changes, line",
    [
        (
            {"DataLoader.Train.num_samples": None},
            "DataLoader.Train.num_samples: --stand-in makes so many; state",
        ),
        (
            {"DataLoader.Train.num_classes": None},
            "DataLoader.Train.num_classes: --stand-in makes so many; state",
        ),
        (
            {"DataLoader.Train.dataset": {"name": "Glyphs"}},
            "takes the place of files of images, .*RecImages.*got Glyphs",
        ),
        ({"DataLoader.Train.dataset": [IMAGES, IMAGES]}, "takes the place of one data set .got a list of 2"),
        ({"DataLoader.Train.dataset.size": [0, 16]}, "DataLoader.Train.dataset.size: must be"),
    ],
)
def test_what_cannot_stand_in_is_refused(changes, line):
    with pytest.raises(UserError, match=line):
        stand_in(load().edit({**STATED, **changes}))
