"""Keep copies of many tensors, made by few launches, to restore them by.

kept = Copies(backbone.parameters())
kept.restore()
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import paddle
from paddle import _C_ops

from plsc.utils.device import on_gpu

MOST = 2**30  # numbers in one copy: Paddle's operators count some in 32 bits


class Copies:
    """Holds the numbers that tensors have now.

    Those of one dtype are copied into one tensor, by one operator. A tensor in host memory beside a GPU, as a
    count in an optimizer's state, is copied there.
    """

    @paddle.no_grad()
    def __init__(self, tensors: Iterable[paddle.Tensor]):
        beside_gpu = on_gpu()
        groups: dict[object, list[paddle.Tensor]] = {}
        self._of_host: list[tuple[paddle.Tensor, np.ndarray]] = []
        for tensor in tensors:
            if beside_gpu and tensor.place.is_cpu_place():
                self._of_host.append((tensor, np.array(tensor.get_tensor())))
            else:
                groups.setdefault(tensor.dtype, []).append(tensor)
        self._groups = [
            (group, paddle.concat([_C_ops.flatten(tensor, 0, -1) for tensor in group]))
            for of_dtype in groups.values()
            for group in _cut(of_dtype)
        ]

    @paddle.no_grad()
    def restore(self) -> None:
        """Overwrite the tensors by these numbers."""
        for group, copy in self._groups:
            parts = copy.split([_size(tensor) for tensor in group])
            for tensor, part in zip(group, parts):
                paddle.assign(part.reshape(tensor.shape), output=tensor)
        for tensor, array in self._of_host:
            tensor.get_tensor().set(array, paddle.CPUPlace())


def _cut(tensors: list[paddle.Tensor]) -> Iterator[list[paddle.Tensor]]:
    """Cut a list into pieces of at most MOST numbers, or of one tensor."""
    piece: list[paddle.Tensor] = []
    numbers = 0
    for tensor in tensors:
        if piece and numbers + _size(tensor) > MOST:
            yield piece
            piece = []
            numbers = 0
        piece.append(tensor)
        numbers += _size(tensor)
    if piece:
        yield piece


def _size(tensor: paddle.Tensor) -> int:
    """Count the numbers; Paddle's own attribute takes longer than to copy them."""
    return math.prod(tensor.shape)
