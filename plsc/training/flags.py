"""Gather the few numbers by which all ranks decide about a step: one small tensor, one collective, one read.

Where the host would wait for the device (`plsc.utils.device.asynchronous`), they are read only while the next step
runs; `LateFlags.ok` says on the device, until then, whether the step counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import paddle
from paddle import _C_ops

from plsc import distributed
from plsc.utils.device import LateRead, read_later, to_device


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


_BAD = slice(0, 3)  # the fields that are 0 in a step that counts


class LateFlags:
    """Holds the flags of a step for `get`.

    rows_WF: a row of fields of each rank, float64. ok: bool scalar on the device, whether the step counts; None
    where nothing waits for it.
    """

    def __init__(self, rows_WF: np.ndarray | LateRead, ok: paddle.Tensor | None = None):
        self._rows_WF = rows_WF
        self.ok = ok

    def get(self) -> Flags:
        """Return the flags; on a GPU wait until it has computed them."""
        rows_WF = self._rows_WF if isinstance(self._rows_WF, np.ndarray) else self._rows_WF.get()
        of_all = Flags(*rows_WF.max(axis=0).tolist())
        first = Flags(*rows_WF[0].tolist())
        return Flags(
            bad_backbone=bool(of_all.bad_backbone),
            bad_head=bool(of_all.bad_head),
            stray=int(of_all.stray),
            loss=first.loss,
            accuracy=first.accuracy,
            signal=int(of_all.signal),
            waited=of_all.waited,
            replaced=int(rows_WF[:, Flags._fields.index("replaced")].sum()),
        )


def gather_now(own: Flags) -> LateFlags:
    """Gather each rank's flags. Every rank calls it. Collectives: one all_gather of a few numbers."""
    row_1F = np.array([own], np.float64)
    ranks = distributed.world_size()
    if ranks == 1:
        return LateFlags(row_1F)
    return LateFlags(distributed.gather_rows(to_device(row_1F), [1] * ranks).numpy())


@paddle.no_grad()
def gather_later(of_device: Sequence[paddle.Tensor], of_host: Sequence[float]) -> LateFlags:
    """Gather each rank's flags without waiting for the device: the first fields are scalars on it, the others
    are known to the host. Every rank calls it. Collectives: one all_gather of a few numbers."""
    numbers = [_C_ops.flatten(tensor.detach().astype("float64"), 0, -1) for tensor in of_device]
    row_1F = paddle.concat([*numbers, to_device(np.array(of_host, np.float64))]).unsqueeze(0)
    rows_WF = distributed.gather_rows(row_1F, [1] * distributed.world_size())
    return LateFlags(read_later(rows_WF), ok=rows_WF[:, _BAD].max() == 0)


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
