"""bfloat16 for the rows of a bank at rest: the upper half of a float32, rounded up or down by chance (stochastic rounding).

A centre moves by less than bfloat16's step (1/128 to 1/256 of the value): rounded to the nearest, most updates would be lost. Rounded up with
the probability of what is cut off, they arrive on average. The chance is a function of (seed, step, class, column), so a resumed run
rounds alike, and any number of ranks does. Numbers are uint16 here: numpy has no bfloat16. Try it:

    float32_of(stochastic(np.full((1, 8), 1.001, np.float32), keys_of(seed=0, step=0, classes=np.array([5]))))
"""

from __future__ import annotations

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_NAN = 0x7FC0


def float32_of(value: object) -> object:
    """The float32 of an array of bfloat16's bits (uint16), exact; anything else as it is."""
    if isinstance(value, np.ndarray) and value.dtype == np.uint16:
        return (value.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return value


def nearest(x: np.ndarray) -> np.ndarray:
    """The nearest bfloat16 of each float32, of two as near ones the even: uint16 of that shape."""
    bits = x.view(np.uint32)
    return _upper(x, bits + (np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))))


def stochastic(x: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The bfloat16 below or above each float32 of `x` [k, n], at random so that the mean is the float32: uint16 [k, n].

    Args:
        keys: uint32 [k], see `keys_of`; they and the column decide the chance.
    """
    half = -(-x.shape[1] // 2)  # one 32-bit random number serves two columns
    random = noise(keys, half)
    up = np.empty(x.shape, np.uint32)
    np.bitwise_and(random, np.uint32(0xFFFF), out=up[:, :half])
    np.right_shift(random[:, : x.shape[1] - half], np.uint32(16), out=up[:, half:])
    up += x.view(np.uint32)
    return _upper(x, up)


def keys_of(seed: int, step: int, classes: np.ndarray) -> np.ndarray:
    """A random uint32 for each class (int64 [k]) in this step of a run: uint32 [k]. The finish of splitmix64."""
    key = classes.astype(np.uint64) * np.uint64(_GOLDEN)
    key += np.uint64((step * 0xD1342543DE82EF95 + seed * 0xA0761D6478BD642F) % 2**64)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (key >> np.uint64(32)).astype(np.uint32)


def noise(keys: np.ndarray, count: int) -> np.ndarray:
    """Random uint32 [k, count], row i by keys[i] alone: an integer hash of 32 bits."""
    x = keys[:, None] + np.arange(count, dtype=np.uint32) * np.uint32(_GOLDEN >> 32)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x ^= x >> np.uint32(shift)
        x *= np.uint32(factor)
    x ^= x >> np.uint32(16)
    return x


def _upper(x: np.ndarray, bits: np.ndarray) -> np.ndarray:
    out = (bits >> np.uint32(16)).astype(np.uint16)
    out[np.isnan(x)] = _NAN  # adding to its bits may have made a number of it
    return out
