"""Each function of rows.py, at every instruction set, against float64."""

import numpy as np
import pytest

from plsc import native as kernels
from plsc.heads.optimizer import Update
from plsc.native.heads import rows
from tests.heads.errors import OPTIMIZERS
from tests.helpers.bounds import EPS, assert_within, growth, perturbed

pytestmark = pytest.mark.parametrize("path", kernels.LEVELS, indirect=True)
INDEX = np.array([0, 3, 4, 10, 22])


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def unit_rows(matrix):
    unit, inverse = np.empty_like(matrix), np.empty(len(matrix), np.float32)
    rows.unit_rows(matrix, unit, inverse)
    return unit, inverse


@pytest.mark.parametrize("width", [1, 7, 16, 33, 512])
def test_unit_rows(path, two_threads, width):
    matrix = drawn(23, width)
    matrix[4] = 0
    unit, inverse = unit_rows(matrix)
    lengths = np.linalg.norm(matrix.astype(np.float64), axis=1)
    # The sum of squares is off by growth(width) EPS, its root by half of that. The root, the quotient and the
    # product are rounded, too.
    share = (growth(width) / 2 + 2) * EPS
    assert inverse[4] == 0
    assert_within(np.delete(inverse * lengths, 4), np.ones(22), share)
    want = matrix / np.where(lengths, lengths, 1)[:, None]
    assert_within(unit, want, share * np.abs(want))


@pytest.mark.parametrize("width", [1, 19, 512])
def test_turn_units(path, two_threads, width):
    unit, inverse = unit_rows(drawn(23, width))
    grad, got = drawn(23, width, seed=1), np.empty((23, width), np.float32)
    rows.turn_units(grad, unit, inverse, got)
    turned = lambda g, u, inverse: (g - (g * u).sum(axis=1, keepdims=True) * u) * inverse[:, None]
    g, u, length = np.abs(grad), np.abs(unit), (np.abs(grad) * np.abs(unit)).sum(axis=1, keepdims=True)
    bound = (growth(width) + 4) * EPS * (g + length * u) * inverse[:, None]  # of the terms' sizes
    assert_within(got, turned(*(array.astype(np.float64) for array in (grad, unit, inverse))), bound)


def test_gather(path, two_threads):
    matrix, picked = drawn(23, 9), np.empty((5, 9), np.float32)
    rows.gather(matrix, INDEX, picked)
    assert np.array_equal(picked, matrix[INDEX])
    numbers, few = drawn(23), np.empty(5, np.float32)
    rows.gather(numbers, INDEX, few)
    assert np.array_equal(few, numbers[INDEX])


@pytest.mark.parametrize("index", [None, INDEX], ids=["all", "sampled"])
@pytest.mark.parametrize("width", [1, 19, 64])
@pytest.mark.parametrize("optimizer", [name for name, (rule, _) in OPTIMIZERS.items() if rule.kernel])
def test_updates(path, two_threads, optimizer, index, width):
    rule, dense = OPTIMIZERS[optimizer]
    arrays = [drawn(23, width), *(np.abs(drawn(23, width, seed=1 + n)) for n in range(len(rule.moments)))]
    before = [array.copy() for array in arrays]
    chosen = slice(None) if index is None else index
    grads = [drawn(23 if index is None else 5, width, seed=4 + step) for step in range(3)]

    def updates(grads, *arrays):
        arrays = [array.copy() for array in arrays]
        for number, grad in enumerate(grads, 1):
            value, *moments = (array[chosen] for array in arrays)
            for array, after in zip(arrays, dense.step(value, grad, *moments, 0.1, number, dense.decay)):
                array[chosen] = after
        return arrays

    want, bound = perturbed(updates, grads, *before, terms=3)
    value, *moments = arrays
    for number, grad in enumerate(grads, 1):
        norms = tuple(float(np.linalg.norm(each.astype(np.float64))) for each in (value[chosen], grad))
        numbers = rule.kernel_numbers("centres", Update(0.1, number, norms))
        rows.update(rule.kernel, value, moments, index, grad, numbers)
    assert_within(arrays, want, bound)
    for found, start in zip(arrays, before):
        if index is not None:
            assert np.array_equal(np.delete(found, index, axis=0), np.delete(start, index, axis=0))


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("width", [1, 19, 512])
def test_pair_products(path, two_threads, width, unit):
    x, matrix = drawn(5, width), drawn(23, width, seed=1)
    matrix[9] = 0
    left, right = np.array([4, 0, 0, 2, 3, 1]), np.array([22, 9, 7, 7, 0, 3])
    got = rows.pair_products(x, left, matrix, right, unit)
    pairs = x.astype(np.float64)[left], matrix.astype(np.float64)[right]
    lengths = np.linalg.norm(pairs[1], axis=1)
    lengths = np.where(lengths > 0, lengths, 1) if unit else 1
    want, terms = ((left * right).sum(axis=1) / lengths for left, right in (pairs, np.abs(pairs)))
    # The products and, by half, the squares under the root.
    assert got[1] == 0
    assert_within(got, want, (1.5 * growth(width) + 3) * EPS * terms)
    assert rows.pair_products(x, left[:0], matrix, right[:0], unit).shape == (0,)


def test_a_row_beyond_the_matrix_is_refused(path):
    with pytest.raises(AssertionError):
        rows.gather(drawn(4, 3), np.array([1, 4]), np.empty((2, 3), np.float32))


@pytest.mark.parametrize("count", [0, 1, 4095, 20_001])
def test_sum_of_squares(path, two_threads, count):
    numbers = drawn(count)
    want = float((numbers.astype(np.float64) ** 2).sum())
    assert abs(rows.sum_of_squares(numbers) - want) <= growth(count + 1) * EPS * want
    for place in {0, count // 2, count - 1} if count else ():
        for bad in (np.nan, np.inf, 1e30):
            spoiled = numbers.copy()
            spoiled[place] = bad
            assert not np.isfinite(rows.sum_of_squares(spoiled))
