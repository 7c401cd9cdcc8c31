"""Find numbers that are not finite: in tensors without waiting for the device, and in arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import paddle
from paddle import _C_ops

from plsc import native as kernels
from plsc.distributed.device import asynchronous
from plsc.heads.banks.state_rows import StateRows
from plsc.native.heads.rows import sum_of_squares
from plsc.utils.bfloat16 import float32_of

_BLOCK = 65_536  # rows of an offloaded bank that are read together


def nonfinite(tensors: Iterable[paddle.Tensor]) -> paddle.Tensor:
    """Say on the device whether a number is not finite, bool [1]; the host knows it first where it need not
    wait."""
    return _nonfinite(tensors) if asynchronous() else paddle.full([1], not finite(tensors), "bool")


def finite(tensors: Iterable[paddle.Tensor]) -> bool:
    """Say whether every number is finite, by one sum of squares; each tensor is examined only if that sum is
    not finite, since squares of finite numbers may be too large."""
    tensors = [tensor for tensor in tensors if tensor.size]
    if not tensors:
        return True
    if kernels.library() and all(map(_for_kernels, tensors)):
        total = sum(map(sum_of_squares, tensors))
    else:
        total = paddle.add_n([_C_ops.squared_l2_norm(tensor).astype("float32") for tensor in tensors]).item()
    return math.isfinite(total) or all(paddle.isfinite(tensor).all().item() for tensor in tensors)


def _for_kernels(tensor: paddle.Tensor) -> bool:
    return tensor.place.is_cpu_place() and tensor.dtype == paddle.float32 and tensor.is_contiguous()


@paddle.no_grad()
def _nonfinite(tensors: Iterable[paddle.Tensor]) -> paddle.Tensor:
    """Say on the device whether a number is not finite, without waiting: bool [1]. One launch for each
    dtype."""
    groups: dict[object, list[paddle.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    of_groups = [unscale(group, 1.0) for group in groups.values()]
    return paddle.concat(of_groups).any(keepdim=True) if of_groups else paddle.zeros([1], "bool")


@paddle.no_grad()
def unscale(gradients: list[paddle.Tensor], scale: float) -> paddle.Tensor:
    """Divide tensors of one dtype by `scale`, a power of two, in place, by one launch -> whether one has a
    number that is not finite, bool [1] on the device."""
    dtype = "float64" if gradients[0].dtype == paddle.float64 else "float32"
    return _C_ops.check_finite_and_unscale_(gradients, paddle.full([1], scale, dtype))[-1]


def finite_arrays(arrays: Iterable[np.ndarray | StateRows]) -> bool:
    """Say whether all numbers of arrays are finite; an offloaded bank's rows are read only if some may not
    be."""
    with np.errstate(over="ignore", invalid="ignore"):
        return all(
            np.isfinite(np.vdot(block, block)) or np.isfinite(block).all()
            for array in arrays
            if not getattr(array, "finite", False)
            for block in _blocks_of(array)
        )


def _blocks_of(array: np.ndarray | StateRows) -> Iterator[np.ndarray]:
    """Yield an array as it is, or stored rows as float32 blocks."""
    if isinstance(array, np.ndarray):
        yield array
    else:
        yield from (float32_of(array[start : start + _BLOCK]) for start in range(0, len(array), _BLOCK))
