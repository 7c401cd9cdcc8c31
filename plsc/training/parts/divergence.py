"""Find steps whose loss or gradients are not finite, so that all ranks skip them.

A skipped step changes only the step number: weights, momentum, BatchNorm's running statistics and a margin's
statistics stay the same, bit for bit. plsc/training/parts/dump.py finds the cause and writes the batch. In float16 a
step in which nothing but the backbone's scaled gradients overflows is no divergence: plsc/training/parts/loss_scale.py.

Try it: `pytest tests/training/parts/test_divergence.py`; what a user sees is in docs/resume.md.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator

import numpy as np
import paddle
from paddle import _C_ops

from plsc import native as kernels
from plsc.config.advice import usual_rate
from plsc.errors import UserError
from plsc.heads.banks.offloaded import StoredRows
from plsc.heads.softmax import HeadOutput, SoftmaxHead
from plsc.native.heads.rows import sum_of_squares
from plsc.training.flags import Flags, agree, nonfinite
from plsc.training.parts.loss_scale import LossScaler
from plsc.utils.bfloat16 import float32_of
from plsc.utils.device import asynchronous

LOW_SHARE = 0.05  # of the rate that is usual for an optimizer: a lower rate is hardly why a run diverges

_BLOCK = 65_536  # rows of an offloaded bank that are read together


class DivergedError(UserError):
    """Too many steps in a row had to be skipped. step: number of the last one, from 1. what: its value that was
    not finite."""

    def __init__(self, text: str, what: str, step: int):
        super().__init__(text)
        self.what = what
        self.step = step


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
    return math.isfinite(total) or not any(map(kind_of, tensors))


def _nonfinite(tensors: Iterable[paddle.Tensor]) -> paddle.Tensor:
    """Say on the device whether a number is not finite, bool [1]; the host knows it first where it need not wait."""
    return nonfinite(tensors) if asynchronous() else paddle.full([1], not finite(tensors), "bool")


def _for_kernels(tensor: paddle.Tensor) -> bool:
    return tensor.place.is_cpu_place() and tensor.dtype == paddle.float32 and tensor.is_contiguous()


def finite_arrays(arrays: Iterable[np.ndarray | StoredRows]) -> bool:
    """Say whether all numbers of arrays are finite; an offloaded bank's rows are read only if some may not
    be."""
    with np.errstate(over="ignore", invalid="ignore"):
        return all(
            np.isfinite(np.vdot(block, block)) or np.isfinite(block).all()
            for array in arrays
            if not getattr(array, "finite", False)
            for block in blocks_of(array)
        )


def blocks_of(array: np.ndarray | StoredRows) -> Iterator[np.ndarray]:
    """Yield an array as it is, or stored rows as float32 blocks."""
    if isinstance(array, np.ndarray):
        yield array
    else:
        yield from (float32_of(array[start : start + _BLOCK]) for start in range(0, len(array), _BLOCK))


class Outcome(enum.Enum):
    """What a step came to. OVERFLOWED: by the loss scale, and all else is finite. STRAY: a label is no class."""

    GOOD = enum.auto()
    OVERFLOWED = enum.auto()
    DIVERGED = enum.auto()
    STRAY = enum.auto()


class NonFiniteGuard:
    """Examines whether a step is finite, and counts those that are not. Every rank makes one.

    Args:
        backbone: the bare layer, not its data parallel wrapper.
        scaler: of the backbone's gradients; None: they are not scaled.

    Attributes: `skipped`, steps that diverged so far; `in_a_row`, those since the last good step;
        `since_good`, the same with the steps that overflowed.
    """

    def __init__(
        self,
        backbone: paddle.nn.Layer,
        head: SoftmaxHead,
        scaler: LossScaler | None = None,
    ):
        self.backbone = backbone
        self.head = head
        self._scaler = scaler
        self.skipped = 0
        self.in_a_row = 0
        self.since_good = 0

    def resume(self, skipped: int, in_a_row: int, since_good: int) -> None:
        """Restore the counts of a checkpoint."""
        self.skipped = skipped
        self.in_a_row = in_a_row
        self.since_good = since_good

    def examine(self, out: HeadOutput, emb_BD: paddle.Tensor, signal: int, data: tuple[float, int]) -> Flags:
        """Find on all ranks whether loss and gradients are finite, and loss and accuracy. Every rank calls it, after the
        backward pass.

        signal: that asks this rank to stop, or 0. data: seconds it has waited for batches, images replaced.

        Collectives: one all_gather of a few numbers.
        """
        loss = out.loss.detach().clone().reshape([1])  # a copy: what is not finite may be overwritten
        bad_backbone = _nonfinite(backbone_gradients(self.backbone).values())
        bad_head = _nonfinite([*head_gradients(self.head, emb_BD).values(), loss])
        return agree([bad_backbone, bad_head, out.stray, out.loss, out.accuracy], [signal, *data])

    def count(self, flags: Flags) -> Outcome:
        """Find what a step came to, and count it. With a scaler, gradients of the backbone alone that are not
        finite are an overflow, as long as the scale can be halved."""
        if flags.stray:
            return Outcome.STRAY
        if not (flags.bad_backbone or flags.bad_head):
            self.in_a_row = 0
            self.since_good = 0
            return Outcome.GOOD
        self.since_good += 1
        if not flags.bad_head and self._scaler and self._scaler.can_shrink:
            return Outcome.OVERFLOWED
        self.skipped += 1
        self.in_a_row += 1
        return Outcome.DIVERGED


def remedy(step: int, since_good: int, learning_rate: float, optimizer: str) -> str:
    """Suggest a remedy for a run that diverged at step `step` (from 1), after `since_good` skipped steps in a
    row, with the optimizer of this name."""
    low = LOW_SHARE * (usual_rate(optimizer) or 0.0)
    if since_good < step and learning_rate >= low:
        return "lower LRScheduler.learning_rate, lengthen its warm-up, or set Optimizer.clip_norm"
    why = "no step has been finite yet" if since_good >= step else "the learning rate is low"
    return (
        f"{why}, so a lower learning rate will hardly help; look in the network for a division by 0, a log or a root of 0, "
        "and in the images of those batches"
    )


def gradients_of(
    backbone: paddle.nn.Layer, head: SoftmaxHead, emb_BD: paddle.Tensor
) -> dict[str, paddle.Tensor]:
    """Collect the gradients of a step on this rank by name, in the order of the forward pass; the backbone's
    are means over the ranks."""
    of_backbone = {f"gradient of {name}": grad for name, grad in backbone_gradients(backbone).items()}
    return {**of_backbone, **head_gradients(head, emb_BD)}


def head_gradients(head: SoftmaxHead, emb_BD: paddle.Tensor) -> dict[str, paddle.Tensor]:
    """Collect the gradients that the head has computed: of this rank's embeddings, and of its centres."""
    gradients = {}
    if emb_BD.grad is not None:
        gradients["gradient of the embeddings"] = emb_BD.grad
    if head.bank.selected:  # else the bank has the gradients of an earlier step
        for name, grad in head.bank.gradients().items():
            gradients[f"gradient of head.{name}"] = grad
    return gradients


def backbone_gradients(backbone: paddle.nn.Layer) -> dict[str, paddle.Tensor]:
    return {name: p.grad for name, p in backbone.named_parameters() if p.grad is not None}


def kind_of(tensor: paddle.Tensor) -> str | None:
    """Name the kind of number in a tensor that is not finite, "NaN" or "inf"; None if all are finite."""
    if paddle.isnan(tensor).any().item():
        return "NaN"
    return "inf" if paddle.isinf(tensor).any().item() else None
