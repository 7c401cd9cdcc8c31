"""Add losses on the embeddings of a step to the head's.

Such a loss compares this run's embeddings with what another run has made. plsc/training/other_run.py opens that run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import paddle
from paddle.autograd import PyLayer

from plsc import distributed
from plsc.data.dataset import Dataset
from plsc.heads.softmax import SoftmaxHead


class ExtraLoss(ABC):
    """Computes one loss beside the head's. Every rank makes one.

    It keeps nothing from step to step: of a checkpoint it is only `network` that a resumed run must have again.

    Attributes:
        title: names its value in the rows of metrics.jsonl, "loss/<title>".
        network: identity of the other run's network, see plsc.checkpoint.saved.Checkpoint.network.
    """

    title: str
    network: str

    def start(self, head: SoftmaxHead, data: Dataset) -> None:  # noqa: B027 (most have nothing to do)
        """Prepare the class centres, before the first step of a run that is not resumed. Every rank calls it."""

    @abstractmethod
    def __call__(
        self, images: np.ndarray, emb_BD: paddle.Tensor, labels: np.ndarray, step: int, counts: Sequence[int]
    ) -> paddle.Tensor:
        """Compute the loss to add: a scalar, the mean over the samples of all ranks, the same on every rank.

        Its gradient on this rank's embeddings is multiplied by the number of ranks, as the head's is (see
        plsc/distributed/collectives.py). Every rank calls it, and reads no value of the device. A gradient that is
        not finite makes the step one that does not count.

        Args:
            images: this rank's samples as the loader gave them, [B, *shape].
            emb_BD: their embeddings, float32, with their gradient to come.
            labels: int64 [B].
            step: number of the step, from 0.
            counts: samples of each rank.
        """


def global_mean(loss_B: paddle.Tensor, counts: Sequence[int]) -> paddle.Tensor:
    """Compute the mean of all ranks' losses as `ExtraLoss` returns it.

    Args:
        loss_B: of this rank's samples. counts: samples of each rank.

    Collectives: one all_reduce SUM of a number.
    """
    return _GlobalMean.apply(loss_B, sum(counts))


class _GlobalMean(PyLayer):
    @staticmethod
    def forward(ctx, loss_B, total):
        ctx.shape = loss_B.shape
        ctx.total = total
        return distributed.all_reduce(loss_B.sum() / total)

    @staticmethod
    def backward(ctx, grad):
        return (grad * (distributed.world_size() / ctx.total)).expand(ctx.shape)
