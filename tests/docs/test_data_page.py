"""docs/data.md names data sets that a config may name, and no format is missing."""

import re

import pytest
import yaml

from plsc.config import load
from plsc.data.config import DATASETS
from tests.helpers.launch import ROOT

PAGE = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")


def rows(heading):
    """The data sets in the table below a heading."""
    chapter = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\|.*\| `(\{.*\})` \|$", chapter, re.MULTILINE)


@pytest.mark.parametrize("part, text", [(part, text) for part in ("Train", "Verify") for text in rows(part)])
def test_a_row_is_a_data_set_of_a_config(part, text):
    section = "Train" if part == "Train" else "Eval"
    assert load(None, [f"DataLoader.{section}.dataset={text}"])


def test_every_format_has_a_row():
    named = {yaml.safe_load(text)["name"] for part in ("Train", "Verify") for text in rows(part)}
    without_files = {"Glyphs", "GlyphPairs", "Synthetic"}
    assert {*DATASETS.builtin} - named == without_files
