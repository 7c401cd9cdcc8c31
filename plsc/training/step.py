"""Describe a step of a training, and let all ranks agree on it by one small tensor, one collective, one
read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import paddle
from paddle import _C_ops

from plsc import distributed
from plsc.data.loader import Batch
from plsc.distributed.device import to_device, to_host
from plsc.heads.softmax import HeadOutput, SoftmaxHead
from plsc.training.finite import nonfinite


@dataclass(frozen=True)
class StepOutput:
    """A step as this rank has it after the backward pass.

    learning_rate: of the backbone's update. emb_BD: with its gradient. out: of the head. losses: of the
    parts, by their names.
    """

    batch: Batch
    learning_rate: float
    emb_BD: paddle.Tensor
    out: HeadOutput
    losses: Mapping[str, paddle.Tensor]

    @property
    def number(self) -> int:
        """The step's number, from 1."""
        return self.batch.step + 1


@dataclass(frozen=True)
class Verdict:
    """What all ranks know of a step, the same on every rank.

    bad_backbone: whether a gradient of the backbone is not finite on some rank; bad_head: whether the loss,
    or a gradient that the head has computed, is not. loss, accuracy: of the step.
    waited: the most seconds that a rank has waited for data. signal: that a rank was asked to stop by, 0 for
    none. label_N: of all ranks' samples of the following step, int64; None where that is not of this epoch.
    """

    bad_backbone: bool
    bad_head: bool
    loss: float
    accuracy: float
    waited: float
    signal: int
    label_N: np.ndarray | None

    @property
    def good(self) -> bool:
        """Whether the step may change anything."""
        return not (self.bad_backbone or self.bad_head)


@paddle.no_grad()
def agree(
    backbone: paddle.nn.Layer,
    head: SoftmaxHead,
    step: StepOutput,
    waited: float,
    signal: int,
    following: Batch | None,
) -> Verdict:
    """Gather what each rank knows of a step, and read it: the one place where the host waits for the device.
    Every rank calls it, after the backward pass.

    Args:
        waited, signal: of this rank, as in Verdict. following: the batch of the next step of this epoch.

    Collectives: one all_gather of a few numbers.
    """
    out = step.out
    loss = out.loss.detach().clone().reshape([1])  # a copy: what is not finite may be overwritten
    bad_backbone = nonfinite([p.grad for p in backbone.parameters() if p.grad is not None])
    bad_head = nonfinite([*_head_gradients(head, step.emb_BD), loss])
    tensors = [bad_backbone, bad_head, out.loss, out.accuracy]
    numbers = [_C_ops.flatten(tensor.detach().astype("float64"), 0, -1) for tensor in tensors]
    most = max(following.counts) if following else 0  # labels ride along: the next step begins with them
    of_rank = np.zeros(2 + most)
    of_rank[:2] = waited, signal
    if following:
        of_rank[2 : 2 + len(following.labels)] = following.labels
    row_1F = paddle.concat([*numbers, to_device(of_rank)]).unsqueeze(0)
    rows_WF = to_host(distributed._c_allgather(row_1F, [1] * distributed.world_size()))
    bad_backbone, bad_head, _, _, waited, signal = rows_WF[:, :6].max(axis=0).tolist()
    loss, accuracy = rows_WF[0, 2:4].tolist()
    label_N = None
    if following:
        labels = [row_F[6 : 6 + count] for row_F, count in zip(rows_WF, following.counts)]
        label_N = np.concatenate(labels).astype(np.int64)
    flags = bool(bad_backbone), bool(bad_head)
    return Verdict(*flags, loss, accuracy, waited, int(signal), label_N)


def _head_gradients(head: SoftmaxHead, emb_BD: paddle.Tensor) -> list[paddle.Tensor]:
    """Collect the gradients that the head has computed: of this rank's embeddings, and of its centres."""
    gradients = [] if emb_BD.grad is None else [emb_BD.grad]
    if head.bank.selected:  # else the bank has the gradients of an earlier step
        gradients += head.bank.gradients().values()
    return gradients
