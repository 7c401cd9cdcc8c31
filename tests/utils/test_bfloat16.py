"""bfloat16 rounding: exact where it can be, unbiased where it cannot, and addressed by class and step
alone."""

import numpy as np

from plsc.utils import bfloat16


def test_a_bfloat16_is_the_upper_half_of_a_float32():
    bits = np.array([0x3F80, 0xC000, 0x7F80, 0x0001], np.uint16)
    assert bfloat16.float32_of(bits).tolist()[:3] == [1.0, -2.0, float("inf")]
    assert bfloat16.nearest(bfloat16.float32_of(bits)).tolist() == bits.tolist()
    kept = np.ones(3, np.float32)
    assert bfloat16.float32_of(kept) is kept


def test_nearest_takes_the_nearest_and_of_two_the_even_one():
    step = 2.0**-7  # of bfloat16 between 1 and 2
    x = np.array([1 + 0.4 * step, 1 + 0.6 * step, 1 + 0.5 * step, 1 + 1.5 * step, np.inf, np.nan], np.float32)
    found = bfloat16.float32_of(bfloat16.nearest(x))
    assert found[:5].tolist() == [1, 1 + step, 1, 1 + 2 * step, np.inf] and np.isnan(found[5])


def test_stochastic_rounding_is_unbiased_and_takes_neighbours_only():
    rng = np.random.default_rng(0)
    x = np.repeat(rng.standard_normal((1, 33)).astype(np.float32), 20_000, axis=0)
    found = bfloat16.float32_of(bfloat16.stochastic(x, bfloat16.keys_of(1, 2, np.arange(20_000)))).astype(
        np.float64
    )
    low = bfloat16.float32_of((x[0].view(np.uint32) >> 16).astype(np.uint16)).astype(np.float64)
    step = bfloat16.float32_of(((x[0].view(np.uint32) >> 16) + 1).astype(np.uint16)) - low
    assert np.isin((found - low) / step, [0, 1]).all()
    # A coin's mean of 20,000 has a deviation of at most 0.0035 steps.
    assert np.abs((found.mean(axis=0) - x[0]) / step).max() < 4.5 * 0.0036
    up = found != low
    assert np.abs(np.corrcoef(up.T)[np.triu_indices(33, 1)]).max() < 5 / np.sqrt(
        20_000
    )  # columns are independent
    assert abs(np.corrcoef(up[:-1, 0], up[1:, 0])[0, 1]) < 5 / np.sqrt(20_000)  # and rows are


def test_small_updates_arrive_where_the_nearest_loses_them():
    x = np.full((64, 8), 1.0, np.float32)
    plain, random = x.copy(), x.copy()
    for step in range(400):  # of a tenth of bfloat16's step each
        plain = bfloat16.float32_of(bfloat16.nearest(plain - np.float32(2.0**-8 / 10)))
        random = bfloat16.float32_of(
            bfloat16.stochastic(random - np.float32(2.0**-8 / 10), bfloat16.keys_of(0, step, np.arange(64)))
        )
    assert (plain == 1).all() and abs(random.mean() - (1 - 40 * 2.0**-8)) < 0.01


def test_what_is_exact_stays_and_what_is_no_number_stays_none():
    x = np.array([[1.0, -0.5, np.inf, -np.inf, 0.0, -0.0]], np.float32)
    assert bfloat16.float32_of(bfloat16.stochastic(x, np.array([7], np.uint32))).tobytes() == x.tobytes()
    bad = np.array([[0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001]], np.uint32).view(np.float32)
    assert np.isnan(bfloat16.float32_of(bfloat16.stochastic(bad, np.array([7], np.uint32)))).all()


def test_the_chance_depends_on_seed_step_class_and_column_alone():
    classes = np.array([3, 9, 2**40])
    first = bfloat16.keys_of(1, 2, classes)
    assert np.array_equal(first[1:], bfloat16.keys_of(1, 2, classes[1:]))
    keys = np.concatenate([first, bfloat16.keys_of(2, 2, classes), bfloat16.keys_of(1, 3, classes)])
    assert len(np.unique(bfloat16.noise(keys, 5))) == 45
    assert np.array_equal(bfloat16.noise(keys[2:4], 5), bfloat16.noise(keys, 7)[2:4, :5])
