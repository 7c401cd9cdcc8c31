"""One forward and backward of the softmax head: where the order of its operations lives. Symbols and method: softmax.py."""

from __future__ import annotations

from functools import partial

import numpy as np
import paddle
import paddle.nn.functional as F

from plsc import distributed
from plsc.errors import UserError
from plsc.heads import walk
from plsc.heads.blocks import inverse, unit_rows, unit_rows_gradient
from plsc.heads.sampling import choose_classes, draw_classes
from plsc.tensors import tensor_of


class Step:
    """Holds what backward needs of forward, and dies with the graph.

    Args:
        head: the SoftmaxHead. emb_BD, label_B: this rank's samples.
        number: of the training step, for the sampling; None: an inspection, in which all classes take part and nothing is
            remembered.
    """

    def __init__(self, head, emb_BD: paddle.Tensor, label_B: paddle.Tensor, number: int | None):
        self.head, self.margin, self.bank, self.emb_BD = head, head.margin, head.bank, emb_BD
        self.number, self.label_B = number, label_B.flatten()
        self.counts = distributed.gather_counts(emb_BD.shape[0])
        self.num_samples = sum(self.counts)  # of all ranks: what the mean is over

    def own(self, x_N: paddle.Tensor) -> paddle.Tensor:
        """This rank's part of a per-sample tensor [N] -> [B]."""
        if not self.head.sharded:
            return x_N
        start = sum(self.counts[: distributed.rank()])
        return x_N[start : start + self.counts[distributed.rank()]]

    def gather(self, x_B: paddle.Tensor) -> paddle.Tensor:
        """Every sample that this rank's shard must judge: all ranks' if the classes are spread, its own if not."""
        return distributed.gather_rows(x_B, self.counts) if self.head.sharded else x_B

    def of_all(self, x_N: paddle.Tensor) -> paddle.Tensor:
        """A per-sample tensor of all ranks' samples, for what a margin remembers: it must be the same everywhere."""
        return x_N if self.head.sharded else distributed.gather_rows(x_N, self.counts)

    # -- forward ------------------------------------------------------------------------------------------------------------

    def forward(self, keep: bool | None = None) -> paddle.Tensor:
        self.x_ND = self.gather(self.emb_BD.astype("float32"))
        if self.margin:
            self.x_ND, self.inverse_N1 = unit_rows(self.x_ND)
            self.norm_N = inverse(self.inverse_N1).flatten()
            if self.number is not None:
                self.margin.observe(self.of_all(self.norm_N))
        self.scaled_ND = self.x_ND * self.head.scale if self.head.scale != 1.0 else self.x_ND
        shard = self.head.shard
        self.local_N = distributed.shard_index(self.gather(self.label_B), shard.start, shard.stop)
        self._find_targets()
        if self.margin and self.margin.has_others:
            self._share_targets()
        self._walk_others(keep)
        self._join_ranks()
        if self.margin and self.margin.trains_norm:
            value_N, self.penalty_slope_N = self.margin.penalty(self.norm_N)
            self.loss_N = self.loss_N + value_N
        loss, self.accuracy = self._means(self.loss_N, self.correct_N.astype("float32"))
        return loss

    def _find_targets(self) -> None:
        """Of the P samples whose class is in this shard: their rows and columns, target logits without and with margin."""
        local_N = self.local_N.numpy()
        self.row_P = np.flatnonzero(local_N >= 0)
        self.column_P = self._sample(local_N[self.row_P])
        order = np.argsort(self.column_P, kind="stable")  # so that a block's targets are one run
        self.row_P, self.column_P = self.row_P[order], self.column_P[order]
        self.rows = tensor_of(self.row_P)
        if not len(self.row_P):
            return
        self.plain_P = self.head.similarity.targets(self.x_ND, self.row_P, self.column_P)
        self.target_P, self.slope_P, self.norm_slope_P = self.plain_P, paddle.ones_like(self.plain_P), None
        if self.margin:
            found = self.margin(self.plain_P, paddle.gather(self.norm_N, self.rows))
            self.target_P, self.slope_P, self.norm_slope_P = found.cosine, found.slope, found.norm_slope

    def _sample(self, class_P: np.ndarray) -> np.ndarray:
        """Choose the classes of this step; the targets' classes as those are numbered."""
        head = self.head
        if head.sample_rate == 1 or self.number is None:
            self.bank.select(None)
            return class_P
        drawn_by = head.shard, head.sample_rate, head.seed
        index_K = choose_classes(np.unique(class_P), *drawn_by, self.number)
        self.bank.select(index_K)
        self.bank.expect(partial(draw_classes, *drawn_by, self.number + 1))
        return np.searchsorted(index_K, class_P)

    def _spread(self, *values_P: paddle.Tensor) -> paddle.Tensor:
        """[P] each -> [how many, N], 0 where the sample's class is in another shard."""
        values = paddle.stack(values_P, axis=1)
        zeros = paddle.zeros([self.x_ND.shape[0], len(values_P)])
        return paddle.scatter(zeros, self.rows, values).transpose([1, 0]).contiguous()

    def _share_targets(self) -> None:
        """Target cosines of all N samples on every rank, for a margin whose other logits depend on them. One SUM."""
        shared_2N = paddle.zeros([2, self.x_ND.shape[0]])
        if len(self.row_P):
            shared_2N = self._spread(self.plain_P, self.target_P)
        if self.head.sharded:
            distributed.all_reduce(shared_2N)
        if self.number is not None:
            self.margin.observe_targets(self.of_all(shared_2N[0]))
        self.cosines = tuple(row_N.unsqueeze(1) for row_N in shared_2N.unbind())

    def _walk_others(self, keep: bool | None) -> None:
        """Row maximum and row sum of exponentials over the sampled logits that are not the sample's target: of all ranks, of this."""
        self.walk = walk.choose(self, keep)
        own_N, plain_N, sum_N = self.walk.forward()
        largest_2N = paddle.stack([own_N, plain_N])
        if self.head.sharded:
            distributed.all_reduce(largest_2N, "max")
        self.max_N, self.plain_max_N = largest_2N.unbind()
        self.rest_N = sum_N * (own_N - self.max_N).exp()

    def _join_ranks(self) -> None:
        """One SUM makes the losses of all N samples known to every rank, and shows labels that no rank owns."""
        if len(self.row_P):
            scale = self.head.scale
            own_3N = self._spread(scale * self.plain_P, scale * self.target_P, paddle.ones_like(self.plain_P))
        else:
            own_3N = paddle.zeros([3, len(self.rest_N)])
        packed_4N = paddle.concat([self.rest_N.unsqueeze(0), own_3N])
        if self.head.sharded:
            distributed.all_reduce(packed_4N)
        rest_N, plain_N, target_N, owned_N = packed_4N.unbind()
        self._refuse_strays(owned_N)
        z_N = self.max_N + rest_N.log() - target_N
        self.loss_N = paddle.log1p((-z_N.abs()).exp()) + z_N.clip(min=0.0)
        self.lse_N = target_N + self.loss_N
        self.miss_N = F.sigmoid(z_N)  # 1 - p(target)
        self.correct_N = plain_N >= self.plain_max_N

    def _refuse_strays(self, owned_N: paddle.Tensor) -> None:
        stray = np.flatnonzero(owned_N.numpy() != 1.0)
        if not len(stray):
            return
        label = int(self.gather(self.label_B)[int(stray[0])])
        raise UserError(
            f"sample {int(stray[0])} of the {len(owned_N)} in this step has label {label}, but labels must be in "
            f"[0, {self.head.shard.num_classes}); {len(stray)} such samples in the step"
        )

    def _means(self, *values_N: paddle.Tensor) -> list[paddle.Tensor]:
        """Means over the samples of all ranks."""
        totals = paddle.stack([value.sum() for value in values_N])
        if not self.head.sharded:
            distributed.all_reduce(totals)
        return (totals / self.num_samples).unbind()

    # -- backward -----------------------------------------------------------------------------------------------------------

    def backward(self, grad: paddle.Tensor) -> paddle.Tensor:
        """Gradient of the loss by this rank's embeddings, times W (see `distributed`); centre gradients go to the bank."""
        factor = grad.astype("float32") / self.num_samples
        miss_P = paddle.gather(self.miss_N, self.rows) if len(self.row_P) else None
        dtarget_P = None if miss_P is None else -miss_P * self.slope_P
        grad_ND = self.walk.backward(self.lse_N, dtarget_P, self.scaled_ND * factor, factor)
        if self.margin and self.margin.trains_norm:
            grad_ND = paddle.concat([grad_ND, self._norm_gradient(miss_P).unsqueeze(1)], axis=1)
        grad_BD = distributed.reduce_scatter_rows(grad_ND, self.counts) if self.head.sharded else grad_ND
        return self._embedding_gradient(grad_BD, factor * distributed.world_size()).astype(self.emb_BD.dtype)

    def _norm_gradient(self, miss_P: paddle.Tensor | None) -> paddle.Tensor:
        """Gradient of this shard's target cosines by the embeddings' norms, [N]; as that of the cosines, without factors."""
        if miss_P is None:
            return paddle.zeros_like(self.norm_N)
        return self._spread(-miss_P * self.norm_slope_P)[0]

    def _embedding_gradient(self, grad_BD: paddle.Tensor, factor: paddle.Tensor) -> paddle.Tensor:
        """From the gradient by scaled embeddings, with the norms' as a last column if they are trained."""
        of_cosine = factor * self.head.scale
        if not self.margin:
            return grad_BD * of_cosine
        unit_BD, inverse_B1 = self.own(self.x_ND), self.own(self.inverse_N1)
        if not self.margin.trains_norm:
            return unit_rows_gradient(grad_BD, unit_BD, inverse_B1 * of_cosine)
        grad_BD, norm_grad_B1 = grad_BD[:, :-1].contiguous(), grad_BD[:, -1:]
        penalty_B1 = self.own(self.penalty_slope_N).unsqueeze(1)
        turned_BD = unit_rows_gradient(grad_BD, unit_BD, inverse_B1 * of_cosine)
        return turned_BD + (norm_grad_B1 * of_cosine + penalty_B1 * factor) * unit_BD
