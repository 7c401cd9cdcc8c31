"""The table of backbones: what is printed, and that docs/labbook.md says the same."""

import re

import pytest

from benchmarks import __main__ as benchmark
from benchmarks.backbone import HEADERS, row
from benchmarks.count import count
from plsc.backbones.config import BACKBONES
from plsc.backbones.face_vit import FaceViT
from plsc.backbones.lenet import LeNet
from tests.helpers.launch import ROOT
from tests.helpers.refusals import refusal
from tests.helpers.undrawn import undrawn

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "labbook.md").read_text(encoding="utf-8")
IN_THE_PAGE = {
    name: line for line, name in re.findall(r"^(\| `(\w+)` \| [\d.]+ M \| .*)$", PAGE, re.MULTILINE)
}


def test_the_page_has_a_line_for_every_backbone():
    assert IN_THE_PAGE.keys() == BACKBONES.builtin.keys()
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


@pytest.mark.parametrize("given", [["--dtype", "bfloat16"], ["--against", "torch", "--device", "cpu"]])
def test_no_option_is_ignored(given):
    assert given[-2] in refusal(benchmark.main, ["backbone", "LeNet", *given])


def test_attention_is_counted_as_by_hand():
    class Tiny(FaceViT):
        width, depth = 16, 2

    tokens, width = 6, 16
    block = tokens * width * (3 + 1 + 4 + 4) * width + 2 * tokens * tokens * width
    macs = tokens * width * 243 + 2 * block + tokens * width * width + width * 8
    assert count(Tiny(8, (3, 20, 29)), (3, 20, 29)).macs == macs
    macs = 26 * 26 * 20 * 9 + 9 * 9 * 50 * 20 * 25 + 800 * 128
    assert count(LeNet(), (1, 28, 28)) == (127_778, macs)
