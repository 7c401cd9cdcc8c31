"""A copy does not wait, and a value is that of the moment it was asked for."""

import numpy as np
import paddle
import pytest

from plsc.utils.device import asynchronous, read_later, to_device


@pytest.mark.parametrize(("setting", "expected"), [("0", True), ("1", False), (None, False)])
def test_kernels_turned_off_stand_for_a_gpu(setting, expected, monkeypatch):
    if setting is None:
        monkeypatch.delenv("PLSC_KERNELS", raising=False)
    else:
        monkeypatch.setenv("PLSC_KERNELS", setting)
    paddle.set_device("cpu")
    assert asynchronous() is expected


def test_a_late_read_has_the_numbers_of_the_moment_it_was_asked_for():
    tensor = paddle.arange(6, dtype="float32").reshape([2, 3])
    late = read_later(tensor)
    paddle.assign(paddle.zeros_like(tensor), output=tensor)
    expected = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(late.get(), expected)
    np.testing.assert_array_equal(late.get(), expected)


@pytest.mark.parametrize(
    "array", [np.arange(4), np.ones((2, 3), np.uint8), np.float32(3.0)[...], np.zeros((0, 2))]
)
def test_an_array_on_the_device_is_a_copy(array):
    expected = array.copy()
    tensor = to_device(array)
    if array.size:
        array[...] = 7
    assert tensor.stop_gradient
    assert tensor.numpy().dtype == expected.dtype
    np.testing.assert_array_equal(tensor.numpy(), expected)
