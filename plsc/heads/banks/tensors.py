"""Create a bank's large tensors, read and write their rows, and view them as arrays."""

import ctypes
import math
import mmap
from collections.abc import Sequence

import numpy as np
import paddle
from paddle.utils import dlpack

from plsc.distributed import paddle_internals


def large_tensor(shape: Sequence[int]) -> paddle.Tensor:
    """Return a new, uninitialised float32 tensor for numbers that every step reads or writes.

    On a CPU its pages have 2 MB if the system supports that, since looking up small pages takes 5 % of a
    head's step. Linux is asked for large pages before the memory is written, as numpy does for its arrays.
    """
    tensor = paddle.empty(shape)
    if tensor.size and tensor.place.is_cpu_place():
        address = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        size = tensor.data_ptr() + tensor.size * tensor.element_size() - address
        if size > 0:
            madvise = ctypes.CDLL(None).madvise
            madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.MADV_HUGEPAGE)
    return tensor


def rows_in_place(tensor: paddle.Tensor, start: int, stop: int) -> paddle.Tensor:
    """Return rows [start, stop) as a tensor that shares their memory.

    A kernel on a CPU may write to it. Other code may only read it, and must change rows with
    `write_rows`.
    """
    if (start, stop) == (0, len(tensor)):
        return tensor
    return paddle_internals.rows_in_place(tensor, start, stop) if start < stop else tensor[:0]


def write_rows(tensor: paddle.Tensor, start: int, rows: paddle.Tensor) -> None:
    """Overwrite a tensor's rows from `start` on, unless `rows` is a view of exactly those rows.

    A write to `tensor[start:stop]` may be lost. The slice is a copy if Paddle has no strided views
    (FLAGS_use_stride_kernel=0, as on NPUs, XPUs and MLUs). An operator that a device lacks runs on the CPU,
    and its result is then in new memory, too.
    """
    before = math.prod(tensor.shape[1:]) * start
    if len(rows) and rows.data_ptr() != tensor.data_ptr() + before * tensor.element_size():
        paddle.scatter_(tensor, paddle.arange(start, start + len(rows)), rows)


class _Exporter:
    """Shares a CPU tensor's memory through the array interchange protocol, which Paddle 2.6's Tensor
    lacks."""

    def __init__(self, tensor: paddle.Tensor):
        self._tensor = tensor

    def __dlpack__(self, **_):
        return dlpack.to_dlpack(self._tensor)

    def __dlpack_device__(self):
        return 1, 0  # the CPU


def host_view(tensor: paddle.Tensor) -> np.ndarray:
    """Return a numpy view of a CPU tensor's memory, or a copy of any other tensor.

    Kernels may write to the view. With numpy 1, Python cannot write to it.
    """
    return (
        np.from_dlpack(_Exporter(tensor)) if tensor.size and tensor.place.is_cpu_place() else tensor.numpy()
    )
