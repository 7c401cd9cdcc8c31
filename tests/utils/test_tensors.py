"""What comes out is what went in, and nothing stays behind; what is written to rows in place is there."""

from pathlib import Path

import numpy as np
import paddle
import pytest

from plsc.utils.tensors import rows_in_place, tensor_of


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
    assert np.array_equal(tensor.numpy(), array) and tensor.stop_gradient


def test_it_is_a_copy():
    array = np.ones(4, np.float32)
    tensor = tensor_of(array)
    array[:] = 2
    assert (tensor == 1).all()


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
    assert pages() - before < 128  # half a megabyte; paddle.to_tensor keeps 2.2 on Paddle 3.3.1


@pytest.mark.parametrize("shape", [[7, 3], [7]])
@pytest.mark.parametrize("start,stop", [(0, 7), (0, 4), (2, 3), (3, 7), (5, 5)])
def test_rows_are_written_in_place(start, stop, shape, request):
    for views in ("with", "without"):
        if views == "without":
            request.getfixturevalue("without_views")
        whole = paddle.zeros(shape)
        rows = rows_in_place(whole, start, stop)
        assert rows.shape == [stop - start, *shape[1:]]
        paddle.assign(paddle.ones(rows.shape), output=rows)
        rows.scale_(2.0)
        want = np.zeros(shape)
        want[start:stop] = 2
        assert np.array_equal(whole.numpy(), want), views
