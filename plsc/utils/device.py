"""Move arrays between host and device without making the host wait.

A GPU works through a queue, behind the host. Whatever reads a value of it, or copies to it from pageable memory,
waits until the queue is empty. Here both ways go through pinned memory, as a further entry of the queue: a value
is asked for with `read_later`, and read when it has long arrived. On a CPU there is no queue, and no pinned memory.

None of the branches for a GPU has been run on one. Try it:

    late = read_later(paddle.arange(3))
    late.get()  # numpy, int64 [3]
"""

from __future__ import annotations

import os

import numpy as np
import paddle

from plsc.utils.tensors import tensor_of


def asynchronous() -> bool:
    """Say whether the host would wait to read a value of the device: on GPUs, and with PLSC_KERNELS=0.

    With the kernels turned off a CPU takes the GPU's way in everything, so that it can be tested and counted there.
    """
    return os.environ.get("PLSC_KERNELS") == "0" or on_gpu()


def on_gpu() -> bool:
    """Say whether Paddle's current device is a GPU."""
    return not paddle.get_device().startswith("cpu")


def to_device(array: np.ndarray) -> paddle.Tensor:
    """Copy an array to the current device as a tensor of the same shape and dtype, without gradient.

    On a GPU the copy is queued; the array itself may be changed at once.
    """
    if not on_gpu():
        return tensor_of(array)
    pinned = tensor_of(array, paddle.CUDAPinnedPlace())
    # Paddle keeps the source until a copy that does not block is done.
    return pinned._copy_to(paddle.framework._current_expected_place(), False)


class LateRead:
    """Holds the numbers that a tensor has now, for a later `get`; made by `read_later`."""

    def __init__(self, tensor: paddle.Tensor):
        if on_gpu():
            self._copy = tensor.detach()._copy_to(paddle.CUDAPinnedPlace(), False)
            self._event = paddle.device.cuda.Event()
            self._event.record()
        else:
            self._copy = None
            self._value = np.array(tensor.get_tensor())

    def get(self) -> np.ndarray:
        """Return the numbers; on a GPU wait until the queue has come to their copy."""
        if self._copy is not None:
            self._event.synchronize()
            self._value = np.array(self._copy.get_tensor())
            self._copy = None
        return self._value


def read_later(tensor: paddle.Tensor) -> LateRead:
    """Ask for the numbers that a tensor has at this point of the queue."""
    return LateRead(tensor)
