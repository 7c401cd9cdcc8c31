"""bfloat16: exact where it can be, nearest where it cannot."""

import numpy as np

from plsc.native import bfloat16


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
