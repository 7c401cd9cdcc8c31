"""Find the steps whose loss or gradients are no finite numbers, so that all ranks alike skip them.

A skipped step leaves no trace in what is trained: weights, momentum, BatchNorm's running statistics and a margin's memory stay bit
for bit what they were; only the step number goes on. Why a step was skipped, and its batch, is for plsc/training/dump.py.

Try it: `pytest tests/training/test_divergence.py`; what a user sees is in docs/resume.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import paddle
from paddle import _C_ops

from plsc import distributed
from plsc.errors import UserError
from plsc.heads import kernels
from plsc.heads.kernels.rows import sum_of_squares
from plsc.heads.offloaded_bank import StoredRows
from plsc.heads.softmax import SoftmaxHead
from plsc.utils.bfloat16 import float32_of

LOW_RATE = 0.005  # below it a run does not diverge by its steps; of SGD with momentum, where 0.1 is usual

_BLOCK = 65_536  # rows of a bank that is not in memory, looked at together


class DivergedError(UserError):
    """Too many steps in a row had to be skipped. `what`: what was not finite in the last."""

    def __init__(self, text: str, what: str):
        super().__init__(text)
        self.what = what


def finite(tensors: Iterable[paddle.Tensor]) -> bool:
    """Say whether every number is finite. One sum of squares over all of them; each tensor is looked at only where that sum is not
    finite, since squares of finite numbers may be too large."""
    tensors = [tensor for tensor in tensors if tensor.size]
    if not tensors:
        return True
    if kernels.library() and all(map(_for_kernels, tensors)):
        total = sum(map(sum_of_squares, tensors))
    else:
        total = paddle.add_n([_C_ops.squared_l2_norm(tensor).astype("float32") for tensor in tensors]).item()
    return math.isfinite(total) or not any(map(kind_of, tensors))


def _for_kernels(tensor: paddle.Tensor) -> bool:
    return tensor.place.is_cpu_place() and tensor.dtype == paddle.float32 and tensor.is_contiguous()


def finite_arrays(arrays: Iterable[np.ndarray | StoredRows]) -> bool:
    """Say the same of numpy arrays, and of a bank's rows that are not in memory: those are read only if some may not be finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return all(
            np.isfinite(np.vdot(block, block)) or np.isfinite(block).all()
            for array in arrays
            if not getattr(array, "finite", False)
            for block in blocks_of(array)
        )


def blocks_of(array: np.ndarray | StoredRows) -> Iterator[np.ndarray]:
    """Yield an array, or the rows of one that is not in memory as float32 blocks."""
    if isinstance(array, np.ndarray):
        yield array
    else:
        yield from (float32_of(array[start : start + _BLOCK]) for start in range(0, len(array), _BLOCK))


class NonFiniteGuard:
    """Says of each step whether it counts, and undoes the forward pass of one that does not. Every rank makes one.

    Args:
        backbone: the bare layer, not its data parallel wrapper.

    Attributes: `skipped`, steps that did not count so far; `in_a_row`, of them the last ones.
    """

    def __init__(self, backbone: paddle.nn.Layer, head: SoftmaxHead):
        self.backbone = backbone
        self.head = head
        self.skipped = 0
        self.in_a_row = 0
        # What a forward pass changes: BatchNorm's running statistics, which have no gradient.
        self._statistics = [tensor for tensor in backbone.state_dict().values() if tensor.stop_gradient]

    def resume(self, skipped: int, in_a_row: int) -> None:
        """Go on with the counts of a checkpoint."""
        self.skipped = skipped
        self.in_a_row = in_a_row

    def remember(self) -> None:
        """Keep what a forward pass changes. Call it before each."""
        self._kept = [tensor.clone() for tensor in self._statistics]
        self._margin = self.head.margin.state() if self.head.margin else {}

    def check(self, loss: paddle.Tensor, emb_BD: paddle.Tensor) -> bool:
        """Say whether the step counts: whether loss and gradients are finite on every rank. Call it after the backward pass.

        One all_reduce of one number; none where the loss is not finite, which is the same number on every rank. It is a sum of
        flags: Gloo's MAX and MIN drop a NaN.
        """
        gradients = gradients_of(self.backbone, self.head, emb_BD)
        counts = math.isfinite(loss.item()) and distributed.every(finite(gradients.values()))
        if counts:
            self.in_a_row = 0
        return counts

    def undo(self) -> None:
        """Give back what the forward pass has changed; the step does not count."""
        for tensor, kept in zip(self._statistics, self._kept):
            paddle.assign(kept, output=tensor)
        if self.head.margin:
            self.head.margin.load_state(self._margin)
        self.skipped += 1
        self.in_a_row += 1


def remedy(step: int, in_a_row: int, learning_rate: float) -> str:
    """Say what may help a run that has diverged at the step number `step` (from 1), after so many skipped ones in a row."""
    if in_a_row < step and learning_rate >= LOW_RATE:
        return "lower LRScheduler.learning_rate, lengthen its warm-up, or set Optimizer.clip_norm"
    why = "no step has been finite yet" if in_a_row >= step else "the learning rate is low"
    return (
        f"{why}, so a lower learning rate will hardly help; look in the network for a division by 0, a log or a root of 0, "
        "and in the images of those batches"
    )


def gradients_of(
    backbone: paddle.nn.Layer, head: SoftmaxHead, emb_BD: paddle.Tensor
) -> dict[str, paddle.Tensor]:
    """Collect the gradients of a step on this rank by name, in the order of the forward pass; the backbone's are means over the ranks."""
    gradients = {f"gradient of {name}": grad for name, grad in backbone_gradients(backbone).items()}
    if emb_BD.grad is not None:
        gradients["gradient of the embeddings"] = emb_BD.grad
    if head.bank.selected:  # else they are those of an earlier step
        for name, grad in head.bank.gradients().items():
            gradients[f"gradient of head.{name}"] = grad
    return gradients


def backbone_gradients(backbone: paddle.nn.Layer) -> dict[str, paddle.Tensor]:
    return {name: p.grad for name, p in backbone.named_parameters() if p.grad is not None}


def kind_of(tensor: paddle.Tensor) -> str | None:
    """Name what is not finite in a tensor, "NaN" or "inf"; None if all is."""
    if paddle.isnan(tensor).any().item():
        return "NaN"
    return "inf" if paddle.isinf(tensor).any().item() else None
