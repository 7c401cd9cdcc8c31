"""Every op of a training step has a kernel, in its dtype, in Paddle 2.6.2's GPU build, and in Ascend's
plug-in (npu).

No device is needed: kernels-2.6.2.txt and plsc/distributed/kernel_tables.txt list what these have, and the
steps run on the CPU as they would on the device. Where this fails, the op is new: take another, or if Paddle
2.6.2 runs another one for the same call, add it to EARLIER.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plsc.distributed.kernel_tables import EARLIER, listed
from plsc.distributed.kinds import AS_KIND
from tests.gpu_ops import op_log
from tests.gpu_ops.record import IMAGES
from tests.helpers.launch import run_python
from tests.training.test_amp_dtypes import dtypes_on_a_gpu, needs_programs, program_of

pytestmark = pytest.mark.slow

TABLE = Path(__file__).with_name("kernels-2.6.2.txt")
NO_KERNEL = {"", "data", "shape64"}  # the embeddings; the images; a shape is known to the host


def table() -> dict[str, set[str]]:
    """Return op -> dtypes of its GPU kernels."""
    lines = (line.split(": ") for line in TABLE.read_text().splitlines() if not line.startswith("#"))
    return {name: set(dtypes.split()) for dtypes, names in lines for name in names.split()}


def missing(ops: dict[str, list[str]]) -> list[str]:
    """Find the ops and dtypes without a GPU kernel."""
    has = table()
    return [
        f"{op}: {dtype}"
        for op, dtypes in ops.items()
        for dtype in dtypes
        if not {dtype, "any"} & has.get(EARLIER.get(op, op), set())
    ]


def test_the_table_is_that_of_a_gpu_build():
    has = table()
    assert len(has) > 1000
    assert {"float16", "bfloat16", "float32"} <= has["matmul"]
    assert "bfloat16" not in has["momentum"]  # which is why 16 bits keep float32 weights


def test_an_op_without_a_kernel_is_found():
    assert missing({"matmul": ["float32"], "momentum": ["bfloat16"], "no_such_op": ["float32"]}) == [
        "momentum: bfloat16",
        "no_such_op: float32",
    ]


def recorded(folder: Path, **env: str) -> dict[str, dict[str, list[str]]]:
    """Return the ops of each case, and the dtypes of each."""
    target = folder / "ops.json"
    env = {**op_log.environment(sizes=False), **env}
    run_python("-m", "tests.gpu_ops.record", target, folder, cwd=folder, **env)
    steps = json.loads(target.read_text())
    assert all("matmul" in ops for ops in steps.values())  # they were recorded
    return steps


def test_the_ops_of_training_steps(tmp_path):
    lacking = {name: found for name, ops in recorded(tmp_path).items() if (found := missing(ops))}
    assert not lacking


def test_the_ops_of_training_steps_on_an_npu(tmp_path):
    npu = listed("npu")
    steps = recorded(tmp_path, FLAGS_use_stride_kernel="0", **{AS_KIND: "npu"})
    lacking = {
        f"{name}: {op} of {dtype}"
        for name, ops in steps.items()
        for op, dtypes in ops.items()
        for dtype in dtypes
        if npu.lacks(op, dtype)
    }
    assert not lacking


@needs_programs
@pytest.mark.parametrize("name", IMAGES)
def test_the_ops_of_a_backbone_in_16_bits(name):
    has = table()
    program = program_of(name)
    for dtype in ("float16", "bfloat16"):
        ops = {
            op: sorted(found) for op, found in dtypes_on_a_gpu(*program, dtype).items() if op not in NO_KERNEL
        }
        assert any(dtype in found for found in ops.values())
        gradients = {f"{op}_grad": found for op, found in ops.items() if f"{op}_grad" in has}
        assert not missing(ops | gradients)
