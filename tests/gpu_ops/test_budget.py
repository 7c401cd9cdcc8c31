"""What a step asks of a GPU: at most so many kernels and bytes, and one wait of the host, after the backward
pass.

The budget is for N = 1024 samples, D = 512 and ArcFace on one process, beside InsightFace's PartialFC_V2 with
its SGD: 110 kernels, ten waits and 32.1 GB for 125,000 classes; 120, twelve and 49.3 GB for a million at rate
0.1 (docs/labbook.md).
"""

from __future__ import annotations

import json
import math

import pytest

from tests.gpu_ops import count, op_log
from tests.gpu_ops.run_budget import CLASSES, HEADS, SAMPLES
from tests.helpers.launch import run_python

pytestmark = pytest.mark.slow

N, D = 1024, 512
# classes, most kernels, most bytes
BUDGETS = {
    "all classes": (125_000, 100, 9.0e9),
    "all classes, bfloat16": (125_000, 100, 10.2e9),
    "sampled": (1_000_000, 120, 7.5e9),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("budget")
    target = folder / "found.json"
    settings = {
        **op_log.environment(),
        "FLAGS_use_stride_kernel": "1",
    }  # as on GPUs; else a view is a kernel, too
    run_python("-m", "tests.gpu_ops.run_budget", target, folder, cwd=folder, **settings)
    return json.loads(target.read_text())


def total(parts: count.Counts, key: str) -> int:
    return sum(found[key] for part, found in parts.items() if part in count.HEAD)


@pytest.mark.parametrize("name", HEADS)
def test_a_step_of_a_head(found, name):
    classes, most_kernels, most_bytes = BUDGETS[name]
    here = {(n, c): found[f"{name} {n} {c}"] for n in SAMPLES for c in CLASSES}
    assert {total(parts, "waits") for parts in here.values()} == {0}
    (kernels,) = {total(parts, "kernels") for parts in here.values()}
    assert 20 < kernels <= most_kernels
    assert bytes_of({key: total(parts, "bytes") for key, parts in here.items()}, N, classes) <= most_bytes


def bytes_of(here: dict[tuple[int, int], int], n: int, c: int) -> float:
    """Extend counts to other sizes: a polynomial of degree 2 in the samples, 1 in the classes."""
    of_samples = {each: extended({k: here[each, k] for k in CLASSES}, c) for each in SAMPLES}
    return extended(of_samples, n)


def extended(points: dict[int, float], x: int) -> float:
    """Evaluate the polynomial through the points (Lagrange)."""
    return sum(
        y * math.prod((x - other) / (at - other) for other in points if other != at)
        for at, y in points.items()
    )


def test_a_whole_step_waits_once(found):
    parts = found["IResNet50"]
    assert parts["forward"]["kernels"] > 150
    assert {"backward", "optimizer", *count.HEAD} <= parts.keys()
    assert {name: part["waits"] for name, part in parts.items() if part["waits"]} == {"check": 1}


def test_two_ranks_wait_once(tmp_path):
    words = ["--name", "SmallResNet", "--size", "28", "--classes", "20", "--dim", "8", "--ranks", "2"]
    parts = count.run("4", words, 2, tmp_path)
    assert {"forward", "backward", *count.HEAD} <= parts.keys()
    assert {name: part["waits"] for name, part in parts.items() if part["waits"]} == {"check": 1}
