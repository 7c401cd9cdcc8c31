"""docs/tour.ipynb: its cells run, in under three minutes of one core, and what it shows was made by them."""

import json
import re

import pytest

from tests.docs.test_docs import dead_links
from tests.helpers.launch import ROOT, run_python

CELLS = json.loads((ROOT / "docs" / "tour.ipynb").read_text(encoding="utf-8"))["cells"]


def text(kind):
    return "\n\n".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == kind)


@pytest.mark.slow
def test_the_cells_run_and_the_network_learns(tmp_path):
    done = run_python("-c", text("code"), cwd=tmp_path, timeout=600, MPLBACKEND="agg")
    results = json.loads((tmp_path / "output/tour/results.json").read_text())
    assert results["sets"]["glyph pairs"]["accuracy"] > 0.9
    found, of, away, strangers = map(
        int, re.findall(r"threshold .*: (\d+) of (\d+) .* (\d+) of (\d+)", done.stdout)[-1]
    )
    assert (of, strangers) == (16, 8) and found >= 6 and away == 8


def test_every_cell_was_run_in_order_without_an_error():
    code = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    outputs = [output for cell in code for output in cell["outputs"]]
    assert outputs and not [output for output in outputs if output["output_type"] == "error"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 4


def test_its_links_lead_somewhere():
    assert "](data.md)" in text("markdown") and not dead_links(text("markdown"), ROOT / "docs")
