"""Find numbers that are not finite in gradients, without waiting for a device."""

from __future__ import annotations

import math
from collections.abc import Iterable

import paddle
from paddle import _C_ops

from plsc import native as kernels
from plsc.distributed.device import asynchronous
from plsc.native.heads.rows import sum_of_squares


def nonfinite(tensors: Iterable[paddle.Tensor]) -> paddle.Tensor:
    """Say on the device whether a number is not finite, bool [1]. A CPU reads the sum of squares alone, while
    that is finite."""
    tensors = [tensor for tensor in tensors if tensor.size]
    by_kernels = not asynchronous() and kernels.library() and all(map(_for_kernels, tensors))
    if by_kernels and math.isfinite(sum(map(sum_of_squares, tensors))):
        return paddle.zeros([1], "bool")
    return unscale(tensors, 1.0)


def _for_kernels(tensor: paddle.Tensor) -> bool:
    return tensor.dtype == paddle.float32 and tensor.is_contiguous()


@paddle.no_grad()
def unscale(gradients: Iterable[paddle.Tensor], scale: float) -> paddle.Tensor:
    """Divide tensors by `scale`, a power of two, in place -> whether a number is not finite, bool [1] on the
    device. One launch for each dtype."""
    groups: dict[object, list[paddle.Tensor]] = {}
    for gradient in gradients:
        groups.setdefault(gradient.dtype, []).append(gradient)
    found = []
    for dtype, group in groups.items():
        of_scale = "float64" if dtype == paddle.float64 else "float32"
        found.append(_C_ops.check_finite_and_unscale_(group, paddle.full([1], scale, of_scale))[-1])
    return paddle.concat(found).any(keepdim=True) if found else paddle.zeros([1], "bool")
