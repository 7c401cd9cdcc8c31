"""Convert between float32 and bfloat16.

A bfloat16 number is a float32 number's upper half. numpy has no bfloat16, so arrays contain its bits as
uint16. Try it:

float32_of(nearest(np.float32([1.001])))
"""

import numpy as np

_NAN = 0x7FC0


def float32_of(value: object) -> object:
    """Convert bfloat16 bits (uint16) to float32 exactly. Return any other value unchanged."""
    if isinstance(value, np.ndarray) and value.dtype == np.uint16:
        return (value.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return value


def nearest(x: np.ndarray) -> np.ndarray:
    """Round each float32 to the nearest bfloat16, with ties to even. Return uint16 in the same shape."""
    bits = x.view(np.uint32)
    out = ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1)))) >> np.uint32(16)).astype(np.uint16)
    out[np.isnan(x)] = _NAN  # the addition may have turned a NaN's bits into a number's
    return out
