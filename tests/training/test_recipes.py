"""Dry runs with all recipes, on noise instead of their images."""

import functools
import re

import pytest

from plsc.config import load
from plsc.entry import Entry
from tests.helpers.launch import ROOT
from tests.helpers.undrawn import undrawn

RECIPES = sorted((ROOT / "configs" / "recipes").glob("*.yaml"))


@functools.cache
def backbone(**section):
    """Build a network of the recipes once."""
    cfg = load({"Model": section}).Model
    with undrawn():
        return cfg.build(embedding_size=cfg.embedding_size, image_shape=(3, 112, 112))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_passes_a_dry_run(path):
    header = re.match(
        r"# .*?: ([\d,]+) images of ([\d,]+) identities\. (\d+) GPUs, ([\d,]+) images a step\. Not run",
        path.read_text(),
    )
    images, classes, ranks, batch = header.groups()
    per_class = int(images.replace(",", "")) // int(classes.replace(",", ""))
    noise = {
        "name": "Synthetic",
        "num_classes": int(classes.replace(",", "")),
        "images_per_class": per_class,
        "image_shape": [3, 112, 112],
    }
    nothing = {"DataLoader.Eval.dataset": None, "DataLoader.Eval.more": {}}
    cfg = load(path, {"DataLoader.Train.dataset": noise, **nothing})
    said = Entry(cfg, model=backbone(**cfg.Model.model_dump())).dry_run(int(ranks))
    assert f"plan: ranks    {ranks}, global batch {batch.replace(',', '')} (" in said
    count = int(classes.replace(",", "")) * per_class
    assert f"plan: data     {count:,} images of {classes} classes, shape [3, 112, 112]" in said
    assert "plan: bytes    of a rank: network " in said


def test_there_are_recipes():
    assert len(RECIPES) >= 8
