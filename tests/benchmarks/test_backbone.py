"""The table of backbones: what is printed, and that docs/recipes.md says the same."""

import re

import pytest

from benchmarks import __main__ as benchmark
from benchmarks.backbone import HEADERS, image_shape_of, row
from plsc.utils.registry import BACKBONES
from tests.helpers.launch import ROOT
from tests.helpers.undrawn import undrawn

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
IN_THE_PAGE = {
    name: line for line, name in re.findall(r"^(\| `(\w+)` \| [\d.]+ M \| .*)$", PAGE, re.MULTILINE)
}


def test_the_page_has_a_line_for_every_backbone():
    assert IN_THE_PAGE.keys() == BACKBONES.builtin
    assert f"| {' | '.join(HEADERS)} |" in PAGE


@pytest.mark.parametrize("name", sorted(BACKBONES.builtin))
def test_parameters_and_macs_in_the_page_are_those_of_the_code(name):
    cells = [cell.strip() for cell in IN_THE_PAGE[name].split("|")]
    with undrawn():
        found = row(name, 112, None)
    assert cells[1:4] == [cell.strip() for cell in found.split("|")][1:4]


def test_the_tool_prints_the_table(capsys):
    sizes = ["--size", "28", "--batch", "2", "--runs", "2", "--threads", "1"]
    assert benchmark.main(["backbone", "LeNet", "SmallResNet", *sizes]) == 0
    header, rule, *lines = capsys.readouterr().out.splitlines()
    assert header == "| name | parameters | MACs | images/s |" and rule == "|---|---|---|---|"
    assert [line.split()[1] for line in lines] == ["`LeNet`", "`SmallResNet`"]
    for line in lines:
        assert float(line.split("|")[-2].replace(",", "")) > 0


def test_without_runs_it_only_counts(capsys):
    assert benchmark.main(["backbone", "LeNet", "--size", "28", "--runs", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "| `LeNet` | 0.44 M | 0.00 G | - |"


def test_the_channels_are_the_backbones_own():
    assert image_shape_of("LeNet", 20) == (1, 20, 20) and image_shape_of("IResNet18", 20) == (3, 20, 20)
