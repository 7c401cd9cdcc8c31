"""docs/data.md: its data sets are ones that a config may name, and its four commands lead from vectors to a
gallery."""

import re

import pytest
import yaml

from plsc.config import load
from plsc.utils.registry import DATASETS
from tests.helpers.launch import ROOT, run_forked

PAGE = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
COMMANDS = re.search(r"```bash\n(.*?)```", PAGE, re.DOTALL)[1].splitlines()


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
    without_files = {"CjkGlyphs", "CjkGlyphPairs", "Glyphs", "GlyphPairs", "Synthetic"}
    assert {*DATASETS.builtin} - named == {"ArrayPairs"} | without_files


def test_vectors_of_200_people_lead_to_a_gallery_in_four_commands(tmp_path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    run_forked(str(ROOT / "docs" / "make_vectors.py"), cwd=tmp_path)
    assert len(COMMANDS) == 4
    said = [run_forked("-m", *command.split(), cwd=tmp_path).stdout for command in COMMANDS]
    assert "errors: 0, warnings: 0" in said[0]
    assert "people.gallery: built, 200 people, 200 rows" in said[2]
    assert "of 39 people" in said[2], "those held out, by their names"
    assert said[3].startswith("who.npy: person 007\n") and "`who.npy: person 007`" in PAGE
