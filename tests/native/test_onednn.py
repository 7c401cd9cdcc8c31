"""Tests of calling oneDNN by its C interface."""

import threading
from pathlib import Path

import numpy as np
import paddle
import pytest

from plsc.native import onednn
from tests.helpers.bounds import assert_within, sums

pytestmark = pytest.mark.skipif(onednn.library() is None, reason="this build of Paddle has no oneDNN")


def test_a_matrix_product_takes_a_scratchpad_of_the_caller():
    """Weights in a layout of the library's choice, so that there is more to it than addresses."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(33, 70)).astype(np.float32)
    b = rng.normal(size=(70, 50)).astype(np.float32)
    out = np.empty((33, 50), np.float32)
    rows = [onednn.describe((33, 70)), onednn.describe_any((70, 50)), None, onednn.describe((33, 50))]
    product = onednn.Operation("matmul", rows, [onednn.SRC, onednn.WEIGHTS, onednn.DST])
    best = onednn.Operation(
        "reorder", [onednn.describe((70, 50)), product.layout(onednn.WEIGHTS)], [onednn.SRC, onednn.DST]
    )
    weights = onednn.buffer(product.size(onednn.WEIGHTS), "weights of the test")
    best(b.ctypes.data, weights)
    product(a.ctypes.data, weights, out.ctypes.data)
    assert_within(out, a.astype(np.float64) @ b, sums(np.matmul, a, b))


def test_each_thread_and_each_number_of_threads_keeps_its_own(monkeypatch):
    made = []

    @onednn.kept
    def make(number):
        made.append(number)
        return object()

    assert make(1) is make(1) and make(1) is not make(2)
    others = []
    thread = threading.Thread(target=lambda: others.append(make(1)))
    thread.start()
    thread.join()
    assert others[0] is not make(1)
    first = make(1)
    threads = onednn.library().threads()
    monkeypatch.setattr(onednn.library(), "threads", lambda: threads + 1)
    assert make(1) is not first
    assert made == [1, 2, 1, 1]


def test_it_is_the_library_of_paddle():
    """Another copy would bring threads of its own."""
    with open("/proc/self/maps") as maps:
        found = {line.split()[-1] for line in maps if "libdnnl" in line or "libmkldnn" in line}
    assert len(found) == 1 and Path(paddle.__file__).parent in Path(found.pop()).parents
