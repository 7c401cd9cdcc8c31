"""What comes out is what went in, and nothing stays behind. What is written to rows in place is there."""

import re
from pathlib import Path

import numpy as np
import paddle
import pytest

from plsc.distributed.device import tensor_of
from plsc.heads.banks.tensors import large_tensor, rows_in_place, write_rows


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12).reshape(3, 4),
        np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2],
        np.zeros((0, 4), np.float32),
        np.array(2.5, np.float32),
    ],
    ids=["int64", "with gaps", "empty", "a number"],
)
def test_the_same_numbers(array):
    tensor = tensor_of(array)
    assert str(tensor.dtype) == f"paddle.{array.dtype}" and list(tensor.shape) == list(array.shape)
    given = array.copy()
    array[...] = -1
    assert np.array_equal(tensor.numpy(), given) and tensor.stop_gradient  # it is a copy


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux for the memory in use")
def test_nothing_is_kept():
    def pages():
        return int(Path("/proc/self/statm").read_text().split()[1])

    array = np.arange(16)
    for _ in range(1000):
        tensor_of(array)
    before = pages()
    for _ in range(20_000):
        tensor_of(array)
    assert pages() - before < 128  # half a megabyte. paddle.to_tensor keeps 2.2 on Paddle 3.3.1


ROWS = [
    pytest.param(start, stop, shape, id=f"{start} to {stop} of {shape}")
    for start, stop in [(0, 7), (0, 4), (2, 3), (3, 7), (5, 5)]
    for shape in ([7, 3], [7])
]


@pytest.mark.parametrize("start,stop,shape", ROWS)
def test_rows_in_place_have_their_address(start, stop, shape, request):
    for views in ("with", "without"):
        if views == "without":
            request.getfixturevalue("without_views")
        whole = tensor_of(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))
        rows = rows_in_place(whole, start, stop)
        assert np.array_equal(rows.numpy(), whole.numpy()[start:stop])
        if stop > start:
            assert rows.is_contiguous() and rows.data_ptr() - whole.data_ptr() == 4 * start * whole[0].size


@pytest.mark.parametrize("start,stop,shape", ROWS)
def test_rows_are_written(start, stop, shape, request):
    for views in ("with", "without"):
        if views == "without":
            request.getfixturevalue("without_views")
        whole = paddle.zeros(shape)
        part = whole[start:stop]
        part.scale_(0.0, 2.0)  # in place or in a copy
        write_rows(whole, start, part)
        want = np.zeros(shape)
        want[start:stop] = 2
        assert np.array_equal(whole.numpy(), want), views
        write_rows(whole, start, paddle.full([stop - start, *shape[1:]], 3.0))
        want[start:stop] = 3
        assert np.array_equal(whole.numpy(), want), views


def asked_for_large_pages(address):
    """Return whether an address's mapping has MADV_HUGEPAGE's flag."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return "hg" in line.split()
    raise AssertionError("no mapping has it")


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="there are no large pages"
)
def test_large_tensors_ask_for_large_pages():
    tensor = large_tensor([1 << 12, 1 << 10])
    assert asked_for_large_pages(tensor.data_ptr() + (1 << 20))
    assert tensor.zero_().any().item() is False
    assert large_tensor([0, 4]).shape == [0, 4] and large_tensor([3]).shape == [3]
