"""Make the large tensors of a bank, read and write some of their rows, and view them as arrays."""

import ctypes
import math
import mmap
from collections.abc import Sequence

import numpy as np
import paddle
from paddle.utils import dlpack

from plsc.distributed import paddle_internals


def large_tensor(shape: Sequence[int]) -> paddle.Tensor:
    """Return a new float32 tensor, not filled, for numbers that every step reads or writes.

    On a CPU its pages have 2 MB if the system supports that: looking up small pages takes 5 % of a head's
    step. Linux is asked for large pages before the memory is written, as numpy does for its arrays.
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
    """Return rows [start, stop) as a tensor at their address in the same memory: for a kernel on a CPU to
    write, and for others to read. Paddle's operators write rows by `write_rows`."""
    if (start, stop) == (0, len(tensor)):
        return tensor
    return paddle_internals.rows_in_place(tensor, start, stop) if start < stop else tensor[:0]


def write_rows(tensor: paddle.Tensor, start: int, rows: paddle.Tensor) -> None:
    """Overwrite the rows of a tensor from `start` on, unless `rows` are these rows in the same memory.

    A write to `tensor[start:stop]` may be lost. The slice is a copy where Paddle has no strided views
    (FLAGS_use_stride_kernel=0, as on NPUs, XPUs and MLUs). An operator that a device lacks also puts its
    result into new memory.
    """
    before = math.prod(tensor.shape[1:]) * start
    if len(rows) and rows.data_ptr() != tensor.data_ptr() + before * tensor.element_size():
        paddle.scatter_(tensor, paddle.arange(start, start + len(rows)), rows)


class _Exporter:
    """Lends a CPU tensor's memory by the array interchange protocol; on Paddle 2.6 Tensor itself cannot."""

    def __init__(self, tensor: paddle.Tensor):
        self._tensor = tensor

    def __dlpack__(self, **_):
        return dlpack.to_dlpack(self._tensor)

    def __dlpack_device__(self):
        return 1, 0  # the CPU


def host_view(tensor: paddle.Tensor) -> np.ndarray:
    """View a CPU tensor's memory as numpy; copy any other tensor. Kernels may write into the view; with numpy
    1 Python may not."""
    return (
        np.from_dlpack(_Exporter(tensor)) if tensor.size and tensor.place.is_cpu_place() else tensor.numpy()
    )
