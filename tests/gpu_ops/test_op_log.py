"""The count of kernels, bytes and waits, against calls counted by hand and Paddle's own count."""

import json

import pytest

from tests.gpu_ops import op_log
from tests.helpers.launch import run_python

pytestmark = pytest.mark.slow

X = 16 * 8 * 4  # bytes
ROWS = 7 * 8 * 4
INDEX = 7 * 8
KERNELS = {  # name -> kernels and bytes in and out
    "product": (["matmul:float32"], 2 * X + 16 * 16 * 4),
    "operator": (["add:float32"], 3 * X),
    "in place": (["add:float32"], 3 * X),
    "view": ([], 0),
    "copy of a view": (["scale:float32", "contiguous:float32"], 4 * X),
    "no values": ([], 0),
    "rows of a table": (["gather:float32"], 2 * ROWS + INDEX),
    "rows into a table": (["scatter:float32"], 2 * ROWS + INDEX),
    "list": (["concat:float32"], 4 * X),
    "long list": (["merged_momentum:float32"], 40 * (5 * X + 4)),  # Paddle's log of it is cut off
    "16 bits": (["cast:float32"], X + X // 2),
    "update": (["momentum:float32"], 5 * X + 4),
    "upload": ([], 0),
}
WAITS = {"numpy": "numpy", "float": "__float__", "bool": "__bool__", "item": "item", "tolist": "tolist"}
WAITS |= {"array": "__array__", "print": "__str__", "if": "__bool__", "to_tensor": "to_tensor"}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("op_log")
    target = folder / "found.json"
    settings = {**op_log.environment(), "FLAGS_use_stride_kernel": "1"}  # else a view is a kernel, too
    run_python("-m", "tests.gpu_ops.run_op_log", target, cwd=folder, **settings)
    return json.loads(target.read_text())


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_and_bytes_of_a_call(found, name):
    assert found[name] == [*KERNELS[name], []]


@pytest.mark.parametrize("name", WAITS)
def test_a_read_or_a_blocking_copy_is_a_wait(found, name):
    assert found[name] == [[], 0, [WAITS[name]]]


def test_what_goes_through_pinned_memory_waits_for_nothing(found):
    assert found["upload"] == [[], 0, []]


def test_an_op_whose_output_depends_on_values_is_a_wait(found):
    ops, _, waits = found["mask"]
    assert len(waits) == 1
    assert f"{waits[0]}:{'bool' if waits[0] == 'nonzero' else 'float32'}" in ops


def test_autograds_own_ops_are_seen(found):
    ops, _, waits = found["autograd"]
    assert [op for op in ops if "grad" in op] == ["sum_grad:float32", "matmul_grad:float32"]
    assert not waits


def test_the_log_has_every_kernel_that_paddle_counts(found):
    counted, logged = found["totals"]
    assert counted == logged > 20
