"""Run one forward and backward pass of the softmax head. Symbols and method: softmax.py.

Each phase takes the results of the ones before it and returns a frozen dataclass:

    gather -> Samples -> find_targets -> Targets -> a backend (backends.py) -> maxima and sums -> join the ranks -> Losses, Saved
    Saved, gradient of the loss -> backward -> gradient of this rank's embeddings; those of the centres go to the bank
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import paddle
import paddle.nn.functional as F

from plsc import distributed
from plsc.heads.backends import BackendInput, KernelBackend, PaddleBackend, choose_backend
from plsc.heads.blocks import inverse, unit_rows, unit_rows_gradient
from plsc.heads.sampling import choose_classes, draw_classes
from plsc.utils.tensors import tensor_of


@dataclass(frozen=True)
class Samples:
    """The samples that this rank works on: those of all ranks if the classes are sharded, else its own.

    x_ND: embeddings, at length 1 with a margin. scaled_ND: times the head's scale. local_N: labels as this
    shard counts its classes, -1 in another shard. norm_N, inverse_N1: the embeddings' lengths, and 1 /
    length; None without a margin. label_N: the labels, int64; None where the head has one range of classes.
    """

    x_ND: paddle.Tensor
    scaled_ND: paddle.Tensor
    local_N: paddle.Tensor
    norm_N: paddle.Tensor | None
    inverse_N1: paddle.Tensor | None
    label_N: np.ndarray | None


@dataclass(frozen=True)
class Targets:
    """The P samples whose class is in this shard, in the order of their classes.

    row_P: which of the N samples. column_P: their classes, as the selected ones are counted. plain_P: logits
    over scale; target_P: with margin; slope_P: its derivative by plain_P; norm_slope_P: by the norm, None
    where the margin does not train it. The logits are None where P is 0.
    """

    row_P: np.ndarray
    column_P: np.ndarray
    rows: paddle.Tensor  # row_P as a tensor
    plain_P: paddle.Tensor | None = None
    target_P: paddle.Tensor | None = None
    slope_P: paddle.Tensor | None = None
    norm_slope_P: paddle.Tensor | None = None

    def __len__(self) -> int:
        return len(self.row_P)


@dataclass(frozen=True)
class Maxima:
    """The maxima over all ranks of each sample's logits but its target: max_N, and plain_max_N before the
    margin's hook. sum_N: this rank's sum of exp(logit - max_N)."""

    max_N: paddle.Tensor
    plain_max_N: paddle.Tensor
    sum_N: paddle.Tensor


@dataclass(frozen=True)
class Losses:
    """The results of the forward pass: mean loss and share of correct samples over all ranks, and both for
    each sample. stray: how many labels are in no rank's shard, int64 scalar."""

    loss: paddle.Tensor
    accuracy: paddle.Tensor
    losses_N: paddle.Tensor
    correct_N: paddle.Tensor
    stray: paddle.Tensor


@dataclass(frozen=True)
class Saved:
    """The results of the forward pass that the backward pass needs.

    lse_N: logarithm of each sample's whole denominator. miss_N: 1 - p(target). penalty_slope_N: of the
    margin's penalty by the norm; None without one.
    """

    samples: Samples
    targets: Targets
    backend: PaddleBackend | KernelBackend
    lse_N: paddle.Tensor
    miss_N: paddle.Tensor
    penalty_slope_N: paddle.Tensor | None


class Step:
    """Computes one step of a head on this rank's samples.

    Args:
        head: the SoftmaxHead. emb_BD, label_B: this rank's samples.
        number: of the training step, for the sampling; None: an inspection, in which all classes take part
            and nothing is remembered.
        counts: samples of each rank; None: the ranks ask each other.
    """

    def __init__(self, head, emb_BD: paddle.Tensor, label_B: paddle.Tensor, number: int | None, counts=None):
        self.head = head
        self.margin = head.margin
        self.emb_BD = emb_BD
        self.label_B = label_B.flatten()
        self.number = number
        self.counts = distributed.gather_counts(emb_BD.shape[0]) if counts is None else list(counts)
        assert self.counts[distributed.rank()] == emb_BD.shape[0], (self.counts, emb_BD.shape)
        self.num_samples = sum(self.counts)  # of all ranks: what the mean is over

    def own(self, x_N: paddle.Tensor) -> paddle.Tensor:
        """Cut this rank's part [B] out of a per-sample tensor [N]."""
        if not self.head.sharded:
            return x_N
        start = sum(self.counts[: distributed.rank()])
        return x_N[start : start + self.counts[distributed.rank()]]

    def gather(self, x_B: paddle.Tensor) -> paddle.Tensor:
        """Collect the samples that this rank works on: all ranks' if the classes are sharded, its own if
        not."""
        return distributed.gather_rows(x_B, self.counts) if self.head.sharded else x_B

    def gather_all(self, x_N: paddle.Tensor) -> paddle.Tensor:
        """Collect a per-sample tensor of all ranks, for a margin's statistics, which must be the same on
        every rank."""
        return x_N if self.head.sharded else distributed.gather_rows(x_N, self.counts)

    # -- forward ------------------------------------------------------------------------------------------------------------

    def forward(self, keep: bool | None = None) -> tuple[Losses, Saved]:
        """Compute the losses. keep: whether exponentials are kept for backward; None: if they fit into the
        budget."""
        samples = self._gather_samples()
        targets = self._find_targets(samples)
        backend_input = BackendInput(
            samples.scaled_ND,
            targets.row_P,
            targets.column_P,
            targets.rows,
            self._share_targets(samples, targets),
            most=self.num_samples if self.head.sharded else max(self.counts),
            inspected=self.number is None,
            bounds=self._bounds(samples),
        )
        backend = choose_backend(self.head, backend_input, keep)
        losses_N, correct_N, lse_N, miss_N, stray = self._join_ranks(targets, self._join_maxima(backend))
        penalty_slope_N = None
        if self.margin and self.margin.trains_norm:
            value_N, penalty_slope_N = self.margin.penalty(samples.norm_N)
            losses_N = losses_N + value_N
        loss, accuracy = self._means(losses_N, correct_N.astype("float32"))
        return (
            Losses(loss, accuracy, losses_N, correct_N, stray),
            Saved(samples, targets, backend, lse_N, miss_N, penalty_slope_N),
        )

    def _gather_samples(self) -> Samples:
        x_ND = self.gather(self.emb_BD.astype("float32"))
        norm_N = inverse_N1 = None
        if self.margin:
            x_ND, inverse_N1 = unit_rows(x_ND)
            norm_N = inverse(inverse_N1).flatten()
            if self.number is not None:
                self.margin.observe(self.gather_all(norm_N))
        scaled_ND = x_ND * self.head.scale if self.head.scale != 1.0 else x_ND
        shard = self.head.shard
        label_N = self.gather(self.label_B)
        local_N = distributed.shard_index(label_N, shard.start, shard.stop)
        several = self.head.ranges is not None
        return Samples(x_ND, scaled_ND, local_N, norm_N, inverse_N1, label_N.numpy() if several else None)

    def _find_targets(self, samples: Samples) -> Targets:
        """Select the classes of the step, and find the samples whose class is in this shard, and their
        logits."""
        local_N = samples.local_N.numpy()
        row_P = np.flatnonzero(local_N >= 0)
        column_P = self._select_classes(local_N[row_P])
        order = np.argsort(column_P, kind="stable")  # so that a block's targets are one run
        row_P, column_P = row_P[order], column_P[order]
        rows = tensor_of(row_P)
        if not len(row_P):
            return Targets(row_P, column_P, rows)
        plain_P = self.head.similarity.targets(samples.x_ND, row_P, column_P)
        if not self.margin:
            return Targets(row_P, column_P, rows, plain_P, plain_P, paddle.ones_like(plain_P))
        moved = self.margin(plain_P, paddle.gather(samples.norm_N, rows))
        return Targets(row_P, column_P, rows, plain_P, moved.cosine, moved.slope, moved.norm_slope)

    def _select_classes(self, class_P: np.ndarray) -> np.ndarray:
        """Let the bank select the classes of this step -> the targets' classes as the selected ones are
        counted."""
        head = self.head
        if head.sample_rate == 1 or self.number is None:
            head.bank.select(None)
            return class_P
        drawn_by = head.shard, head.sample_rate, head.seed
        index_K = choose_classes(np.unique(class_P), *drawn_by, self.number)
        head.bank.select(index_K)
        head.bank.prefetch(partial(draw_classes, *drawn_by, self.number + 1))
        return np.searchsorted(index_K, class_P)

    def _bounds(self, samples: Samples) -> np.ndarray | None:
        """Find the selected classes in the range of each sample's class, as BackendInput.bounds has them."""
        if self.head.ranges is None:
            return None
        starts, stops = np.array(self.head.ranges).T
        range_N = np.searchsorted(stops, samples.label_N, side="right").clip(max=len(stops) - 1)
        edges_2N = np.stack([starts, stops])[:, range_N] - self.head.shard.start
        bank = self.head.bank
        if bank.selected == bank.shard.size:
            return edges_2N.clip(0, bank.shard.size)
        return np.searchsorted(bank.index, edges_2N)

    def _spread(self, targets: Targets, *values_P: paddle.Tensor) -> paddle.Tensor:
        """Spread target values [P] over all samples -> [number of values, N], 0 where the sample's class is
        in another shard."""
        values = paddle.stack(values_P, axis=1)
        zeros = paddle.zeros([self._samples_here, len(values_P)])
        return paddle.scatter(zeros, targets.rows, values).transpose([1, 0]).contiguous()

    @property
    def _samples_here(self) -> int:
        """N, the number of samples that this rank works on."""
        return self.num_samples if self.head.sharded else self.emb_BD.shape[0]

    def _share_targets(
        self, samples: Samples, targets: Targets
    ) -> tuple[paddle.Tensor, paddle.Tensor] | None:
        """Share the target cosines of all N samples with every rank, [N, 1] without and with margin. One SUM,
        and only for a margin that changes the other logits by them."""
        if not (self.margin and self.margin.has_others):
            return None
        shared_2N = paddle.zeros([2, self._samples_here])
        if len(targets):
            shared_2N = self._spread(targets, targets.plain_P, targets.target_P)
        if self.head.sharded:
            distributed.all_reduce(shared_2N)
        if self.number is not None:
            self.margin.observe_targets(self.gather_all(shared_2N[0]))
        plain_N1, target_N1 = (row_N.unsqueeze(1) for row_N in shared_2N.unbind())
        return plain_N1, target_N1

    def _join_maxima(self, backend: PaddleBackend | KernelBackend) -> Maxima:
        """Find the largest logit but the target of each sample over all ranks, and this rank's sum of
        exponentials. One MAX."""
        own_N, plain_N, sum_N = backend.forward()
        largest_2N = paddle.stack([own_N, plain_N])
        if self.head.sharded:
            distributed.all_reduce(largest_2N, "max")
        max_N, plain_max_N = largest_2N.unbind()
        return Maxima(max_N, plain_max_N, sum_N * (own_N - max_N).exp())

    def _join_ranks(self, targets: Targets, maxima: Maxima) -> tuple[paddle.Tensor, ...]:
        """Compute loss, whether correct, lse and 1 - p(target) of all N samples on every rank, [N] each, and
        how many labels are in no shard. One SUM."""
        if len(targets):
            scale = self.head.scale
            own = scale * targets.plain_P, scale * targets.target_P, paddle.ones_like(targets.plain_P)
            own_3N = self._spread(targets, *own)
        else:
            own_3N = paddle.zeros([3, len(maxima.sum_N)])
        packed_4N = paddle.concat([maxima.sum_N.unsqueeze(0), own_3N])
        if self.head.sharded:
            distributed.all_reduce(packed_4N)
        sum_N, plain_N, target_N, owned_N = packed_4N.unbind()
        stray = (owned_N != 1.0).sum()
        z_N = maxima.max_N + sum_N.log() - target_N
        loss_N = paddle.log1p((-z_N.abs()).exp()) + z_N.clip(min=0.0)
        return loss_N, plain_N >= maxima.plain_max_N, target_N + loss_N, F.sigmoid(z_N), stray

    def _means(self, *values_N: paddle.Tensor) -> list[paddle.Tensor]:
        """Average over the samples of all ranks."""
        totals = paddle.stack([value.sum() for value in values_N])
        if not self.head.sharded:
            distributed.all_reduce(totals)
        return (totals / self.num_samples).unbind()

    # -- backward -----------------------------------------------------------------------------------------------------------

    def backward(self, saved: Saved, grad: paddle.Tensor) -> paddle.Tensor:
        """Compute the loss's gradient by this rank's embeddings, times W (see `distributed`); those of
        centres go to the bank."""
        targets = saved.targets
        factor = grad.astype("float32") / self.num_samples
        miss_P = paddle.gather(saved.miss_N, targets.rows) if len(targets) else None
        dtarget_P = None if miss_P is None else -miss_P * targets.slope_P
        grad_ND = saved.backend.backward(saved.lse_N, dtarget_P, saved.samples.scaled_ND * factor, factor)
        if self.margin and self.margin.trains_norm:
            grad_ND = paddle.concat([grad_ND, self._norm_gradient(saved, miss_P).unsqueeze(1)], axis=1)
        grad_BD = distributed.reduce_scatter_rows(grad_ND, self.counts) if self.head.sharded else grad_ND
        grad_BD = self._embedding_gradient(saved, grad_BD, factor * distributed.world_size())
        return grad_BD.astype(self.emb_BD.dtype)

    def _norm_gradient(self, saved: Saved, miss_P: paddle.Tensor | None) -> paddle.Tensor:
        """Compute the gradient of this shard's target cosines by the embeddings' norms, [N]; like that of the
        cosines, without factors."""
        if miss_P is None:
            return paddle.zeros_like(saved.samples.norm_N)
        return self._spread(saved.targets, -miss_P * saved.targets.norm_slope_P)[0]

    def _embedding_gradient(
        self, saved: Saved, grad_BD: paddle.Tensor, factor: paddle.Tensor
    ) -> paddle.Tensor:
        """Turn the gradient by the scaled embeddings, with that by the norms as a last column if they are
        trained, into that by the embeddings."""
        of_cosine = factor * self.head.scale
        if not self.margin:
            return grad_BD * of_cosine
        unit_BD = self.own(saved.samples.x_ND)
        inverse_B1 = self.own(saved.samples.inverse_N1)
        if not self.margin.trains_norm:
            return unit_rows_gradient(grad_BD, unit_BD, inverse_B1 * of_cosine)
        norm_grad_B1 = grad_BD[:, -1:]
        grad_BD = grad_BD[:, :-1].contiguous()
        penalty_B1 = self.own(saved.penalty_slope_N).unsqueeze(1)
        turned_BD = unit_rows_gradient(grad_BD, unit_BD, inverse_B1 * of_cosine)
        return turned_BD + (norm_grad_B1 * of_cosine + penalty_B1 * factor) * unit_BD
