"""Move arrays to the device without making the host wait.

A GPU works through a queue, behind the host. Whatever reads a value of it, or copies to it from pageable memory,
waits until the queue is empty. Here arrays go through pinned memory, as a further entry of the queue. On a CPU there
is no queue, and no pinned memory.

None of the branches for a GPU has been run on one. Try it:

    to_device(np.arange(3))
"""

from __future__ import annotations

from collections import deque

import numpy as np
import paddle

from plsc.utils.kernels import turned_off
from plsc.utils.tensors import tensor_of


def asynchronous() -> bool:
    """Say whether the host would wait to read a value of the device: on GPUs, and with PLSC_KERNELS=0.

    With the kernels turned off a CPU takes the GPU's way in everything, so that it can be tested and counted there.
    """
    return turned_off() or on_gpu()


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


class Sender:
    """Copies large arrays to the device, one a step, on a stream of its own beside the work of the step before.

    Where the host need not wait, on CPUs, an array is passed on as it is.
    """

    BUFFERS = 2  # of one shape: one is filled while the work of the step before uses the other

    def __init__(self):
        self._buffers: dict[tuple, deque[_Buffer]] = {}
        self._stream = paddle.device.Stream() if on_gpu() else None
        self._queued = None  # event of a GPU: what was queued when the last array was sent

    def send(self, array: np.ndarray) -> np.ndarray | paddle.Tensor:
        """Return the numbers on the device, where they are overwritten by the second call after this one.

        The array itself may be changed at once. Work that uses the result has to be queued before the next call.
        """
        if not asynchronous():
            return array
        buffers = self._buffers.setdefault((array.shape, array.dtype.name), deque())
        if len(buffers) < self.BUFFERS:
            buffers.append(_Buffer(array, self._stream))
        else:
            buffers.rotate(-1)
        buffer = buffers[-1]
        buffer.fill(array)
        if self._stream is None:
            buffer.on_device.copy_(buffer.on_host, True)
            return buffer.on_device
        if self._queued is not None:
            self._stream.wait_event(self._queued)  # the last use of this buffer was queued before
        with paddle.device.stream_guard(self._stream):
            buffer.on_device.copy_(buffer.on_host, False)
        buffer.copied.record(self._stream)
        paddle.device.current_stream().wait_event(buffer.copied)
        self._queued = paddle.device.Event()
        self._queued.record()
        return buffer.on_device


class _Buffer:
    """Memory for one array, pinned and on the device, and on a GPU the event of the last copy between them."""

    def __init__(self, array: np.ndarray, stream: paddle.device.Stream | None):
        self._place = paddle.CPUPlace() if stream is None else paddle.CUDAPinnedPlace()
        self.on_host = tensor_of(array, self._place)
        self.on_device = paddle.empty(array.shape, array.dtype.name)
        self.copied = None
        if stream is not None:
            self.copied = paddle.device.Event()
            # What is queued may still use this memory, for the tensor that had it before.
            stream.wait_stream(paddle.device.current_stream())

    def fill(self, array: np.ndarray) -> None:
        """Write the pinned memory, when the copy of two steps ago is done: by then it is."""
        if self.copied is not None:
            self.copied.synchronize()
        self.on_host.get_tensor().set(array, self._place)
