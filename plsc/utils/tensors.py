"""Arrays to tensors, many times a step, without what Paddle 3.3 loses each time: `paddle.to_tensor` keeps 112 bytes of every array for
good, a gigabyte in a million steps of a head. Try it:

    tensor_of(np.arange(4))
"""

from __future__ import annotations

import numpy as np
import paddle


def tensor_of(array: np.ndarray) -> paddle.Tensor:
    """A copy on the device that computes, with the array's shape and dtype and without gradient. Above a megabyte, where the copy is what
    counts, `paddle.to_tensor` is faster."""
    tensor = paddle.empty(array.shape, array.dtype.name)
    tensor.get_tensor().set(array, paddle.framework._current_expected_place())
    return tensor
