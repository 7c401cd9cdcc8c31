"""Convert between float32 and bfloat16, its upper half, as uint16 arrays: numpy has no bfloat16.

The banks on host and disk store rows so, rounded up or down at random by the kernels of
plsc/native/heads/records.py. An update is smaller than bfloat16's step (1/128 to 1/256 of the value):
rounding to the nearest would lose most updates. Rounding up with a probability equal to the part that is
cut off keeps them on average. The random numbers are a function of (seed, step, class, column), so that a
resumed run, and a run on any number of ranks, rounds alike. Try it:

    float32_of(nearest(np.float32([1.001])))
"""

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
    out = ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1)))) >> np.uint32(16)).astype(np.uint16)
    out[np.isnan(x)] = _NAN  # adding to the bits of a NaN may have given a number
    return out


def rounding_keys(seed: int, step: int, classes: np.ndarray) -> np.ndarray:
    """Make a random uint32 for each class (int64 [k]) in this step of a run: uint32 [k].

    Key and column determine the random number that a number of the class is rounded by. The finaliser of
    splitmix64.
    """
    key = classes.astype(np.uint64) * np.uint64(_GOLDEN)
    key += np.uint64((step * 0xD1342543DE82EF95 + seed * 0xA0761D6478BD642F) % 2**64)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (key >> np.uint64(32)).astype(np.uint32)
