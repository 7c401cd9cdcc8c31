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
def test_a_row_states_the_defaults_and_they_are_a_config(kind):
    stated = dict(text.split() for text in ROWS[kind][3].split(", "))
    stated = {name: yaml.safe_load(value) for name, value in stated.items()}
    assert stated == {name: p.default for name, p in inspect.signature(MARGINS.get(kind)).parameters.items()}
    build_margin(load({"Head": {"name": f"dist_{kind}", **stated}}).Head)


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
