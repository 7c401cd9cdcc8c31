"""docs/margins.md against the code: every head, option and default is there, the snippets load, the picture can be made."""

import inspect
import re
import runpy
import sys
from pathlib import Path

import pytest
import yaml

from plsc.config import load
from plsc.heads.config import head_names
from plsc.training.build_head import build_margin
from plsc.utils.messages import arguments_of
from plsc.utils.registry import MARGINS
from tests.helpers.launch import ROOT

PAGE = (ROOT / "docs" / "margins.md").read_text(encoding="utf-8")
ROWS = {
    re.match(r"\| `(\w+)", line).group(1): line.split(" | ")
    for line in re.findall(r"^\| `.*", PAGE, re.MULTILINE)
}
SNIPPETS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def test_the_table_has_every_head():
    assert {name for row in ROWS.values() for name in re.findall(r"`(\w+)`", row[0])} == set(head_names())


@pytest.mark.parametrize("kind", list(MARGINS.builtin))
def test_a_row_states_the_defaults(kind):
    stated = dict(text.split() for text in ROWS[kind][3].split(", "))
    defaults = {name: p.default for name, p in inspect.signature(MARGINS.get(kind)).parameters.items()}
    assert {name: float(value) for name, value in stated.items()} == defaults


def test_every_key_that_changes_a_margin_is_explained():
    for key in (
        "margin",
        "options",
        "gradient",
        "sub_centres",
        "filter_above",
        "scale",
        "bias",
        "sample_rate",
    ):
        assert re.search(rf"`(Head\.)?{key}\b", PAGE), key


@pytest.mark.parametrize("text", SNIPPETS)
def test_a_snippet_is_a_config(text, tmp_path):
    (tmp_path / "x.yaml").write_text(text)
    cfg = load(tmp_path / "x.yaml").Head
    build_margin(cfg)
    assert cfg.name.startswith("dist_")


def test_every_margin_and_option_has_a_snippet():
    heads = [yaml.safe_load(text)["Head"] for text in SNIPPETS]
    assert {head["name"][5:] for head in heads} == {*MARGINS.builtin, "softmax"}
    for kind in MARGINS.builtin:
        options = set(arguments_of(MARGINS.get(kind))[0]) - {"margin"}
        assert options in [set(head.get("options", ())) for head in heads if head["name"] == f"dist_{kind}"]
    assert {"gradient", "sub_centres", "filter_above", "bias"} <= {key for head in heads for key in head}


def test_the_picture_is_made_and_small(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["plot_margins.py", str(tmp_path / "margins.png")])
    runpy.run_path(str(ROOT / "tools" / "plot_margins.py"))
    for path in (tmp_path / "margins.png", ROOT / "docs" / "pictures" / "margins.png"):
        data = Path(path).read_bytes()
        assert data.startswith(b"\x89PNG") and 20_000 < len(data) < 100_000
