"""Let all ranks agree on a step by the few numbers that decide about it: one small tensor, one collective,
one read."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import paddle
from paddle import _C_ops

from plsc import distributed
from plsc.distributed.device import to_device, to_host
from plsc.heads.softmax import SoftmaxHead
from plsc.training.finite import nonfinite
from plsc.training.step import TakenStep, Verdict

_JUDGED = 5  # numbers of a step before those of the parts


@paddle.no_grad()
def agree(
    backbone: paddle.nn.Layer, head: SoftmaxHead, step: TakenStep, flags: Mapping[str, float]
) -> Verdict:
    """Gather what each rank knows of a step, and read it: the one place where the host waits for the device.
    Every rank calls it, after the backward pass.

    Args:
        flags: of the parts of this rank.

    Collectives: one all_gather of a few numbers.
    """
    out = step.out
    loss = out.loss.detach().clone().reshape([1])  # a copy: what is not finite may be overwritten
    bad_backbone = nonfinite(backbone_gradients(backbone).values())
    bad_head = nonfinite([*head_gradients(head, step.emb_BD).values(), loss])
    tensors = [bad_backbone, bad_head, out.stray, out.loss, out.accuracy]
    numbers = [_C_ops.flatten(tensor.detach().astype("float64"), 0, -1) for tensor in tensors]
    row_1F = paddle.concat([*numbers, to_device(np.array(list(flags.values()), np.float64))]).unsqueeze(0)
    rows_WF = to_host(distributed.gather_rows(row_1F, [1] * distributed.world_size()))
    bad_backbone, bad_head, stray, *_ = rows_WF.max(axis=0).tolist()
    _, _, _, loss, accuracy, *_ = rows_WF[0].tolist()
    of_parts = dict(zip(flags, rows_WF[:, _JUDGED:].T))
    return Verdict(bool(bad_backbone), bool(bad_head), int(stray), loss, accuracy, of_parts)


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
