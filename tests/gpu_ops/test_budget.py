"""What a step asks of a GPU: a limited number of kernels, and one wait of the host, after the backward pass.

InsightFace's PartialFC_V2 with its SGD launches 110 kernels, and 120 at a rate of 0.1. It waits ten and
twelve times in the head alone (docs/labbook.md).
"""

from __future__ import annotations

import json

import paddle
import pytest

from tests.gpu_ops import count
from tests.helpers.launch import ROOT, launch, run_python

pytestmark = pytest.mark.slow

MOST = {"all classes": 65, "sampled": 88}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("budget")
    target = folder / "found.json"
    run_python("-m", "tests.gpu_ops.count", target, folder, cwd=folder, **count.environment())
    return json.loads(target.read_text())


@pytest.mark.parametrize("name", count.HEADS)
def test_a_step_of_a_head(found, name):
    assert sum(part["waits"] for part in found[name].values()) == 0
    assert 20 < sum(part["kernels"] for part in found[name].values()) <= MOST[name]


@pytest.mark.skipif(paddle.__version__.startswith("2."), reason="its log has no shapes")
def test_a_step_of_a_head_moves_few_bytes(found):
    """In units of the logits [N, C] and the rows [C, D]. Logits are written once, read for the maximum, read
    and written by the softmax, and read by two products. There are 13 passes over rows, 5 of them in the
    update."""
    moved = sum(part["bytes"] for part in found["all classes"].values())
    logits, rows = 4 * count.SAMPLES * count.CLASSES, 4 * count.CLASSES * count.WIDTH
    least = 6 * logits + 13 * rows
    assert least < moved < 1.03 * least  # and what is as small as the samples


@pytest.mark.parametrize("name", count.STEPS)
def test_a_whole_step_waits_once(found, name):
    assert found[name]["forward"]["kernels"] > 20 and {"backward", *count.HEAD} <= found[name].keys()
    assert {part: counts["waits"] for part, counts in found[name].items() if counts["waits"]} == {"rest": 1}


def test_two_ranks_wait_once(tmp_path):
    target = tmp_path / "found.json"
    launch(ROOT / "tests/gpu_ops/count.py", 2, tmp_path, target, tmp_path, **count.environment())
    for parts in json.loads(target.read_text()).values():
        assert {part: counts["waits"] for part, counts in parts.items() if counts["waits"]} == {"rest": 1}
