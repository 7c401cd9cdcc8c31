"""Convert float32 to bfloat16, its upper half, with stochastic rounding: up or down at random.

The banks on host and disk store rows so. An update is smaller than bfloat16's step (1/128 to 1/256 of the
value): rounding to the nearest would lose most updates. Rounding up with a probability equal to the part that
is cut off keeps them on average. The random numbers are a function of (seed, step, class, column), so that a
resumed run, and a run on any number of ranks, rounds alike. bfloat16 numbers are uint16 arrays here, since
numpy has no bfloat16. Try it:

    float32_of(stochastic(np.full((1, 8), 1.001, np.float32), keys_of(seed=0, step=0, classes=np.array([5]))))
"""

from __future__ import annotations

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_NAN = 0x7FC0


def float32_of(value: object) -> object:
    """Convert an array of bfloat16 bits (uint16) to float32, exactly; return anything else as it is."""
    if isinstance(value, np.ndarray) and value.dtype == np.uint16:
        return (value.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return value


def nearest(x: np.ndarray) -> np.ndarray:
    """Round each float32 to the nearest bfloat16, ties to even: uint16 of the same shape."""
    bits = x.view(np.uint32)
    return _upper(x, bits + (np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))))


def stochastic(x: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Round each float32 of `x` to the bfloat16 below or above at random, so that the mean is `x`: uint16 [k,
    n].

    Args:
        x: float32 [k, n].
        keys: uint32 [k], see `keys_of`; key and column determine the random number.
    """
    half = -(-x.shape[1] // 2)  # one 32-bit random number serves two columns
    random = noise(keys, half)
    up = np.empty(x.shape, np.uint32)
    np.bitwise_and(random, np.uint32(0xFFFF), out=up[:, :half])
    np.right_shift(random[:, : x.shape[1] - half], np.uint32(16), out=up[:, half:])
    up += x.view(np.uint32)
    return _upper(x, up)


def keys_of(seed: int, step: int, classes: np.ndarray) -> np.ndarray:
    """Make a random uint32 for each class (int64 [k]) in this step of a run: uint32 [k].

    The finaliser of splitmix64.
    """
    key = classes.astype(np.uint64) * np.uint64(_GOLDEN)
    key += np.uint64((step * 0xD1342543DE82EF95 + seed * 0xA0761D6478BD642F) % 2**64)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (key >> np.uint64(32)).astype(np.uint32)


def noise(keys: np.ndarray, count: int) -> np.ndarray:
    """Make random uint32 [k, count] by a 32-bit integer hash; row i depends on keys[i] alone."""
    x = keys[:, None] + np.arange(count, dtype=np.uint32) * np.uint32(_GOLDEN >> 32)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x ^= x >> np.uint32(shift)
        x *= np.uint32(factor)
    x ^= x >> np.uint32(16)
    return x


def _upper(x: np.ndarray, bits: np.ndarray) -> np.ndarray:
    out = (bits >> np.uint32(16)).astype(np.uint16)
    out[np.isnan(x)] = _NAN  # adding to the bits of a NaN may have given a number
    return out
