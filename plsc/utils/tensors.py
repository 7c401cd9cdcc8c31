"""Convert arrays to tensors without the memory leak of `paddle.to_tensor`.

Paddle 3.3 never frees 112 bytes of each call, which is a gigabyte in a million steps of a head. Try it:

    tensor_of(np.arange(4))
"""

from __future__ import annotations

import numpy as np
import paddle


def tensor_of(array: np.ndarray, place: object = None) -> paddle.Tensor:
    """Copy an array to a place as a tensor of the same shape and dtype, without gradient.

    place: one of Paddle's; None: the current device.

    For arrays above a megabyte, where copying dominates, `paddle.to_tensor` is faster.
    """
    tensor = paddle.empty(array.shape, array.dtype.name)
    tensor.get_tensor().set(array, place or paddle.framework._current_expected_place())
    return tensor
