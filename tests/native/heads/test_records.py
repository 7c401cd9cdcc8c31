"""Records in files, and packed: the bits that numpy gives."""

import os

import numpy as np
import pytest

from plsc.native.heads import records
from plsc.utils import bfloat16


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("count", [0, 1, 1300])
def test_records_go_into_a_file_and_back(tmp_path, count):
    rows = np.sort(np.random.default_rng(1).choice(3000, count, replace=False))
    with open(tmp_path / "file", "w+b") as file:
        file.truncate(3000 * 12)
        want = numbers(count, 3)
        records.write_records(file.fileno(), rows, want)
        out = np.empty_like(want)
        records.read_records(file.fileno(), rows, out)
        assert np.array_equal(out, want)
        file.seek(0)
        whole = np.frombuffer(file.read(), np.float32).reshape(3000, 3)
    assert np.array_equal(whole[rows], want) and not np.delete(whole, rows, axis=0).any()


def test_a_file_that_ends_and_one_that_fails(tmp_path):
    out = np.empty((2, 3), np.float32)
    with open(tmp_path / "file", "w+b") as file:
        file.truncate(40)
        with pytest.raises(EOFError):
            records.read_records(file.fileno(), np.array([0, 3]), out)
    closed = os.open(tmp_path / "file", os.O_RDONLY)
    with pytest.raises(OSError, match="Bad file descriptor"):
        records.write_records(closed, np.array([0, 1]), out)
    os.close(closed)


@pytest.mark.parametrize("widths", [(8, 8), (7, 7, 0, 0), (33, 33), (512, 512, 0, 0), (1, 1)])
@pytest.mark.parametrize("rounded", [False, True])
def test_packing_takes_the_rows_side_by_side(widths, rounded):
    arrays = [numbers(20, width, seed=i) if width else numbers(20, seed=i) for i, width in enumerate(widths)]
    slots = np.array([3, 19, 0, 7])
    keys = bfloat16.keys_of(5, 6, np.array([1, 2, 30, 2**33])) if rounded else None
    packed = records.pack(arrays, slots, keys)
    want = np.concatenate([array[slots].reshape(4, -1) for array in arrays], axis=1)
    assert np.array_equal(packed, bfloat16.stochastic(want, keys) if rounded else want)
    back = [np.zeros_like(array) for array in arrays]
    records.unpack(packed, back, slots)
    start = 0
    for array in back:
        width = array.reshape(20, -1).shape[1]
        assert np.array_equal(
            array[slots].reshape(4, -1), bfloat16.float32_of(packed)[:, start : start + width]
        )
        assert not np.delete(array, slots, axis=0).any()
        start += width


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 4, 8])
def test_numbers_that_are_not_finite_are_kept(value, column):
    array = numbers(3, 9)
    array[1, column] = value
    for keys in (None, np.array([1, 0xFFFFFFFF], np.uint32)):
        packed = records.pack([array], np.array([0, 1]), keys)
        kept = bfloat16.float32_of(packed)[1, column]
        assert np.isnan(kept) if np.isnan(value) else kept == value
        assert np.isfinite(bfloat16.float32_of(packed)).sum() == 17


def test_a_slot_that_is_not_there_is_refused():
    with pytest.raises((AssertionError, IndexError)):
        records.pack([numbers(3, 4)], np.array([3]), None)
    with pytest.raises((AssertionError, IndexError)):
        records.unpack(numbers(1, 4), [numbers(3, 4)], np.array([3]))
