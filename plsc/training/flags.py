"""Let all ranks agree on a step by the few numbers that decide about it: one small tensor, one collective, one read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import paddle
from paddle import _C_ops

from plsc import distributed
from plsc.utils.device import to_device


class Flags(NamedTuple):
    """The numbers of a step, the same on every rank.

    bad_backbone: whether a gradient of the backbone is not finite on some rank; bad_head: whether the loss, or a
    gradient that the head has computed, is not. stray: labels that are no class. signal: the largest number of
    a signal that asks a rank to stop, 0 without one. waited: the longest that a rank has waited for batches since
    it began, in seconds. replaced: corrupt images that the ranks have replaced in this epoch.
    """

    bad_backbone: bool
    bad_head: bool
    stray: int
    loss: float
    accuracy: float
    signal: int
    waited: float
    replaced: int


@paddle.no_grad()
def agree(of_device: Sequence[paddle.Tensor], of_host: Sequence[float]) -> Flags:
    """Gather each rank's own flags, and read those of all. Every rank calls it; the host waits for the device.

    Args:
        of_device: the first fields, scalars on the device. of_host: the others.

    Collectives: one all_gather of a few numbers.
    """
    numbers = [_C_ops.flatten(tensor.detach().astype("float64"), 0, -1) for tensor in of_device]
    row_1F = paddle.concat([*numbers, to_device(np.array(of_host, np.float64))]).unsqueeze(0)
    rows_WF = distributed.gather_rows(row_1F, [1] * distributed.world_size()).numpy()
    most = Flags(*rows_WF.max(axis=0).tolist())
    first = Flags(*rows_WF[0].tolist())
    return Flags(
        bad_backbone=bool(most.bad_backbone),
        bad_head=bool(most.bad_head),
        stray=int(most.stray),
        loss=first.loss,
        accuracy=first.accuracy,
        signal=int(most.signal),
        waited=most.waited,
        replaced=int(rows_WF[:, Flags._fields.index("replaced")].sum()),
    )


@paddle.no_grad()
def nonfinite(tensors: Iterable[paddle.Tensor]) -> paddle.Tensor:
    """Say on the device whether a number is not finite, without waiting: bool [1]. One launch for each dtype."""
    groups: dict[object, list[paddle.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    of_groups = [unscale(group, 1.0) for group in groups.values()]
    return paddle.stack(of_groups).any(axis=0) if of_groups else paddle.zeros([1], "bool")


@paddle.no_grad()
def unscale(gradients: list[paddle.Tensor], scale: float) -> paddle.Tensor:
    """Divide tensors of one dtype by `scale`, a power of two, in place, by one launch -> whether one has a
    number that is not finite, bool [1] on the device."""
    dtype = "float64" if gradients[0].dtype == paddle.float64 else "float32"
    return _C_ops.check_finite_and_unscale_(gradients, paddle.full([1], scale, dtype))[-1]
