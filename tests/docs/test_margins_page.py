"""The margins of docs/training.md against the code: every head and default is there."""

import inspect
import re

import pytest
import yaml

from plsc.config import load
from plsc.heads.build import build_margin
from plsc.heads.config import MARGINS
from tests.helpers.head_names import HEADS
from tests.helpers.launch import ROOT

PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
CHAPTER = PAGE.partition("\n## Margins\n")[2].partition("\n## ")[0]
ROWS = {
    re.match(r"\| `(\w+)", line).group(1): line.split(" | ")
    for line in re.findall(r"^\| `.*", CHAPTER, re.MULTILINE)
}


def test_the_table_has_every_head():
    assert {name for row in ROWS.values() for name in re.findall(r"`(\w+)`", row[0])} == set(HEADS)


@pytest.mark.parametrize("kind", list(MARGINS.builtin))
def test_a_row_states_the_defaults(kind):
    stated = dict(text.split() for text in ROWS[kind][3].split(", "))
    defaults = {name: p.default for name, p in inspect.signature(MARGINS.get(kind)).parameters.items()}
    assert {name: float(value) for name, value in stated.items()} == defaults


def test_every_key_that_changes_a_margin_is_explained():
    for key in (
        "margin",
        "gradient",
        "sub_centres",
        "filter_above",
        "scale",
        "bias",
        "sample_rate",
    ):
        assert re.search(rf"`(Head\.)?{key}\b", CHAPTER), key


@pytest.mark.parametrize("kind", list(MARGINS.builtin))
def test_a_row_s_defaults_are_a_config(kind):
    stated = {
        name: yaml.safe_load(value) for name, value in (text.split() for text in ROWS[kind][3].split(", "))
    }
    build_margin(load({"Head": {"name": f"dist_{kind}", **stated}}).Head)
