"""Create a bank's large tensors, read and write their rows, and view tensors as arrays.

A write to a view of rows may be lost, because the supposed view may be a copy. `tensor[start:stop]` is a copy
if Paddle has no strided views (FLAGS_use_stride_kernel=0, as on NPUs, XPUs and MLUs). If Paddle runs an
operator on the CPU because the device lacks this operator, the result is also a copy.

Code that changes rows therefore passes the new rows to `write_rows`. It may compute them in a view:
`DeviceSelection` lets the optimizer change the rows from `rows_in_place`, and then passes them to
`write_rows`. On a CPU, `rows_in_place` and `host_view` always return views. Code that runs only on CPUs
writes to them without `write_rows`: the compiled kernels, and `KernelBackend.backward`, which multiplies the
bias's gradient.
"""

import ctypes
import math
import mmap
from collections.abc import Sequence

import numpy as np
import paddle
from paddle.utils import dlpack

from plsc.distributed import paddle_internals


def large_tensor(shape: Sequence[int]) -> paddle.Tensor:
    """Return a new float32 tensor with arbitrary values, for numbers that every step reads or writes.

    On a CPU, the tensor gets 2 MB memory pages if the system supports such pages. With small pages, the
    processor spends 5 % of the head's time on looking up pages. Linux must be asked for large pages before
    the memory is written. numpy does the same for its arrays.
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
    """Return rows [start, stop) of a tensor as a tensor that shares the memory of these rows.

    Code that runs only on CPUs may write to the result. Any other code that changes the result must then pass
    it to `write_rows` (see this module's docstring).
    """
    if (start, stop) == (0, len(tensor)):
        return tensor
    return paddle_internals.rows_in_place(tensor, start, stop) if start < stop else tensor[:0]


def write_rows(tensor: paddle.Tensor, start: int, rows: paddle.Tensor) -> None:
    """Overwrite the rows of a tensor that begin at `start` with `rows`.

    If `rows` already is a view of exactly these rows, the function does nothing. A plain assignment to
    `tensor[start:stop]` might be lost (see this module's docstring).
    """
    before = math.prod(tensor.shape[1:]) * start
    if len(rows) and rows.data_ptr() != tensor.data_ptr() + before * tensor.element_size():
        paddle.scatter_(tensor, paddle.arange(start, start + len(rows)), rows)


class _Exporter:
    """Gives numpy access to a CPU tensor's memory through the DLPack protocol. Tensors of Paddle 2.6
    do not support this protocol themselves."""

    def __init__(self, tensor: paddle.Tensor):
        self._tensor = tensor

    def __dlpack__(self, **_):
        return dlpack.to_dlpack(self._tensor)

    def __dlpack_device__(self):
        return 1, 0  # kDLCPU, device 0


def host_view(tensor: paddle.Tensor) -> np.ndarray:
    """Return a numpy view of a CPU tensor's memory, or a copy of any other tensor.

    Kernels may write to the view. With numpy 1, the view is read-only for Python.
    """
    return (
        np.from_dlpack(_Exporter(tensor)) if tensor.size and tensor.place.is_cpu_place() else tensor.numpy()
    )
