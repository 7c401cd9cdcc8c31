"""Compute losses on pairs of embeddings beside the head's: batch-hard triplets, supervised contrastive,
Circle, Multi-Similarity.

    Parts: [{name: triplet, weight: 1.0, margin: 0.2}]

Every sample of the step is compared with those of all ranks, by cosine. A sample takes part where the step
has another of its class and one of another class: the sampler `pk` sees to that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated

import paddle
from paddle.nn.functional import normalize, relu, softplus
from paddle.profiler import RecordEvent
from pydantic import Field

from plsc import distributed
from plsc.data.loader import Batch
from plsc.distributed.device import to_device
from plsc.training.parts.part import Part
from plsc.utils.ranges import Positive

Cosine = Annotated[float, Field(ge=-1, le=1)]

# More than any logit, far from overflow: a pair that does not count is moved by it.
_FAR = 1e9


class PairLoss(Part, ABC):
    """Adds `weight` times the mean of a loss of each sample that has pairs of both kinds, 0 where none has.

    Args:
        weight: of the loss, against the head's.

    A loss of one's own derives from it and defines `name` and `compare`.
    """

    def __init__(self, weight: Positive = 1.0):
        self.weight = weight

    @abstractmethod
    def compare(
        self, cos_BN: paddle.Tensor, same_BN: paddle.Tensor, other_BN: paddle.Tensor
    ) -> paddle.Tensor:
        """Compute the loss of each sample, float32 [B]; any finite number where it has no pairs of one kind.

        Args:
            cos_BN: cosines of this rank's samples with those of all ranks, float32.
            same_BN: whether the other sample is of the same class, and not the sample itself. other_BN: whether it is of another.
        """

    def loss(self, batch: Batch, emb_BD: paddle.Tensor) -> paddle.Tensor:
        with RecordEvent("head"):
            unit_BD = normalize(emb_BD.flatten(1))
            # All cosines with this rank's samples as the first of the pair: gathering gives the gradients as
            # the second.
            unit_ND = distributed._c_allgather(unit_BD, batch.counts)
            cos_BN = paddle.matmul(unit_BD, unit_ND, transpose_y=True)
            label_N = distributed.gather_rows(to_device(batch.labels), batch.counts)
            equal_NN = label_N.unsqueeze(1) == label_N.unsqueeze(0)
            same_NN = paddle.logical_and(equal_NN, paddle.eye(len(label_N)) == 0)
            other_NN = paddle.logical_not(equal_NN)
            counts_N = (same_NN.any(1) & other_NN.any(1)).astype("float32")
            first = sum(batch.counts[: distributed.rank()])
            rows = slice(first, first + len(batch.labels))
            loss_B = self.compare(cos_BN, same_NN[rows], other_NN[rows]) * counts_N[rows]
            share = counts_N.mean().clip(min=1 / len(label_N))
            return distributed.global_mean(self.weight * loss_B / share, batch.counts)


class Triplet(PairLoss):
    """Asks of the least similar sample of the class to be nearer than the most similar one of another, by a
    margin.

    max(0, margin + d(a, p) - d(a, n)) with squared distances of embeddings of length 1 (Schroff et al.,
    "FaceNet", 2015, equation 3) for the hardest pairs of the step (Hermans et al., "In Defense of the Triplet
    Loss", 2017, equation 5).
    """

    name = "triplet"

    def __init__(self, weight: Positive = 1.0, margin: Positive = 0.2):
        super().__init__(weight)
        self.margin = margin

    def compare(self, cos_BN, same_BN, other_BN):
        same_B = paddle.where(same_BN, cos_BN, paddle.full_like(cos_BN, 2)).min(1)
        other_B = paddle.where(other_BN, cos_BN, paddle.full_like(cos_BN, -2)).max(1)
        return relu(self.margin + 2 * (other_B - same_B))


class SupCon(PairLoss):
    """Classifies the samples of the step by the sample itself (Khosla et al., "Supervised Contrastive
    Learning", 2020, equation 2)."""

    name = "supcon"

    def __init__(self, weight: Positive = 1.0, temperature: Positive = 0.1):
        super().__init__(weight)
        self.temperature = temperature

    def compare(self, cos_BN, same_BN, other_BN):
        logit_BN = cos_BN / self.temperature
        log_sum_B1 = _only(paddle.logical_or(same_BN, other_BN), logit_BN).logsumexp(1, keepdim=True)
        same_BN = same_BN.astype("float32")
        return ((log_sum_B1 - logit_BN) * same_BN).sum(1) / same_BN.sum(1).clip(min=1)


class Circle(PairLoss):
    """Pulls and pushes each pair the more, the farther it is from its optimum (Sun et al., "Circle Loss",
    2020, equation 6)."""

    name = "circle"

    def __init__(self, weight: Positive = 1.0, margin: Positive = 0.25, scale: Positive = 256.0):
        super().__init__(weight)
        self.margin = margin
        self.scale = scale

    def compare(self, cos_BN, same_BN, other_BN):
        far_same_BN = relu(1 + self.margin - cos_BN.detach())
        far_other_BN = relu(self.margin + cos_BN.detach())
        same_logit_BN = -self.scale * far_same_BN * (cos_BN - (1 - self.margin))
        other_logit_BN = self.scale * far_other_BN * (cos_BN - self.margin)
        return softplus(
            _only(same_BN, same_logit_BN).logsumexp(1) + _only(other_BN, other_logit_BN).logsumexp(1)
        )


class MultiSimilarity(PairLoss):
    """Weighs the pairs that are hard against the sample's others (Wang et al., "Multi-Similarity Loss", 2019,
    equations 9, 10 and 13).

    Args:
        alpha, beta: slopes for pairs of the same class and of others. base: the cosine between them. epsilon: a pair counts
            unless it is easier by this than the hardest of the other kind.
    """

    name = "multi_similarity"

    def __init__(
        self,
        weight: Positive = 1.0,
        alpha: Positive = 2.0,
        beta: Positive = 50.0,
        base: Cosine = 0.5,
        epsilon: Annotated[float, Field(ge=0, le=2)] = 0.1,
    ):
        super().__init__(weight)
        self.alpha = alpha
        self.beta = beta
        self.base = base
        self.epsilon = epsilon

    def compare(self, cos_BN, same_BN, other_BN):
        fixed_BN = cos_BN.detach()
        least_B1 = paddle.where(same_BN, fixed_BN, paddle.full_like(fixed_BN, 2)).min(1, keepdim=True)
        most_B1 = paddle.where(other_BN, fixed_BN, paddle.full_like(fixed_BN, -2)).max(1, keepdim=True)
        same_BN = paddle.logical_and(same_BN, fixed_BN - self.epsilon < most_B1)
        other_BN = paddle.logical_and(other_BN, fixed_BN + self.epsilon > least_B1)
        return self._term(same_BN, self.base - cos_BN, self.alpha) + self._term(
            other_BN, cos_BN - self.base, self.beta
        )

    def _term(self, counts_BN: paddle.Tensor, excess_BN: paddle.Tensor, slope: float) -> paddle.Tensor:
        """Compute log(1 + sum of exp(slope * excess)) / slope over the pairs that count, [B]."""
        return softplus(_only(counts_BN, slope * excess_BN).logsumexp(1)) / slope


def _only(counts_BN: paddle.Tensor, logit_BN: paddle.Tensor) -> paddle.Tensor:
    """Leave the logits of pairs that count, and let all others vanish in a sum of exponentials."""
    return paddle.where(counts_BN, logit_BN, paddle.full_like(logit_BN, -_FAR))
