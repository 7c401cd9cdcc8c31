"""Records in files, and packed: the bits that numpy gives."""

import os

import numpy as np
import pytest

from plsc.native.bfloat16 import float32_of
from plsc.native.heads import records
from plsc.native.heads.records import rounding_keys


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def stochastic(x, keys):
    """Round as the kernels do, by numpy: bits of stored rows depend on these constants."""
    half = -(-x.shape[1] // 2)  # one 32-bit random number serves two columns
    random = keys[:, None] + np.arange(half, dtype=np.uint32) * np.uint32(0x9E3779B9)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        random ^= random >> np.uint32(shift)
        random *= np.uint32(factor)
    random ^= random >> np.uint32(16)
    up = np.concatenate([random & np.uint32(0xFFFF), random >> np.uint32(16)], axis=1)[:, : x.shape[1]]
    return ((x.view(np.uint32) + up) >> np.uint32(16)).astype(np.uint16)


def rounded(x, keys):
    """Pack rows of numbers and read them back."""
    return float32_of(records.pack([x], np.arange(len(x)), keys))


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
@pytest.mark.parametrize("halves", [False, True])
def test_packing_takes_the_rows_side_by_side(widths, halves):
    arrays = [numbers(20, width, seed=i) if width else numbers(20, seed=i) for i, width in enumerate(widths)]
    slots = np.array([3, 19, 0, 7])
    keys = rounding_keys(5, 6, np.array([1, 2, 30, 2**33])) if halves else None
    packed = records.pack(arrays, slots, keys)
    want = np.concatenate([array[slots].reshape(4, -1) for array in arrays], axis=1)
    assert np.array_equal(packed, stochastic(want, keys) if halves else want)
    back = [np.zeros_like(array) for array in arrays]
    records.unpack(packed, back, slots)
    start = 0
    for array in back:
        width = array.reshape(20, -1).shape[1]
        assert np.array_equal(array[slots].reshape(4, -1), float32_of(packed)[:, start : start + width])
        assert not np.delete(array, slots, axis=0).any()
        start += width


def test_a_key_depends_on_seed_step_and_class_alone():
    classes = np.array([3, 9, 2**40])
    first = rounding_keys(1, 2, classes)
    assert np.array_equal(first[1:], rounding_keys(1, 2, classes[1:]))
    others = [rounding_keys(2, 2, classes), rounding_keys(1, 3, classes)]
    assert len(np.unique(np.concatenate([first, *others]))) == 9


def test_rounding_is_unbiased_and_takes_neighbours_only():
    x = np.repeat(numbers(1, 33), 20_000, axis=0)
    found = rounded(x, rounding_keys(1, 2, np.arange(20_000))).astype(np.float64)
    low = float32_of((x[0].view(np.uint32) >> 16).astype(np.uint16)).astype(np.float64)
    step = float32_of(((x[0].view(np.uint32) >> 16) + 1).astype(np.uint16)) - low
    assert np.isin((found - low) / step, [0, 1]).all()
    # The mean over 20,000 coin tosses has a deviation of at most 0.0035 steps.
    assert np.abs((found.mean(axis=0) - x[0]) / step).max() < 4.5 * 0.0036
    up = found != low
    # Columns are independent, and rows are.
    assert np.abs(np.corrcoef(up.T)[np.triu_indices(33, 1)]).max() < 5 / np.sqrt(20_000)
    assert abs(np.corrcoef(up[:-1, 0], up[1:, 0])[0, 1]) < 5 / np.sqrt(20_000)


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 4, 8])
def test_numbers_that_are_not_finite_are_kept(value, column):
    array = numbers(3, 9)
    array[1, column] = value
    for keys in (None, np.array([1, 0xFFFFFFFF], np.uint32)):
        packed = records.pack([array], np.array([0, 1]), keys)
        kept = float32_of(packed)[1, column]
        assert np.isnan(kept) if np.isnan(value) else kept == value
        assert np.isfinite(float32_of(packed)).sum() == 17


def test_a_slot_that_is_not_there_is_refused():
    with pytest.raises((AssertionError, IndexError)):
        records.pack([numbers(3, 4)], np.array([3]), None)
    with pytest.raises((AssertionError, IndexError)):
        records.unpack(numbers(1, 4), [numbers(3, 4)], np.array([3]))
