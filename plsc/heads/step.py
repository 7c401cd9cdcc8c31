"""Run one forward and backward pass of the softmax head. Symbols and method: softmax.py.

Each phase takes the results of the ones before it and returns a frozen dataclass:

    find_targets -> Places; gather -> Samples; move_targets -> Targets
    a backend (backends.py) -> maxima and sums -> join the ranks -> Losses, Saved
    Saved, gradient of the loss -> backward -> gradient of this rank's embeddings; the bank gets the centres'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import paddle
import paddle.nn.functional as F

from plsc import distributed
from plsc.distributed.device import asynchronous, to_device
from plsc.heads.backends import HeadMemory, KernelBackend, PaddleBackend, takes_kernels
from plsc.heads.blocks import Rows, TargetRows
from plsc.heads.margins import change_targets
from plsc.heads.sampling import unite
from plsc.heads.spec import HeadSpec


@dataclass(frozen=True)
class Samples:
    """The samples that this rank works on: those of all ranks if the classes are sharded, else its own.

    rows: embeddings, at length 1 with a margin. scaled_ND: the same times the head's scale. norm_N: their
    lengths; None without a margin.
    """

    rows: Rows
    scaled_ND: paddle.Tensor
    norm_N: paddle.Tensor | None


@dataclass(frozen=True)
class Places:
    """Where the N samples' classes are in this shard.

    row_P: the samples whose class is in it, in the order of their classes. column_P: these classes, as the
    bank's selected rows are counted. owned_N: 1 of these samples, 0 of the others, on the device.
    """

    row_P: np.ndarray
    column_P: np.ndarray
    owned_N: paddle.Tensor


@dataclass(frozen=True)
class Targets:
    """The samples' own logits over scale, [N], 0 of a sample whose class is in another shard.

    owned_N: 1 of those whose class is in this shard, else 0. plain_N: without margin; target_N: with it;
    slope_N: its derivative by plain_N; norm_slope_N: by the norm, None where the margin does not train it.
    """

    owned_N: paddle.Tensor
    plain_N: paddle.Tensor
    target_N: paddle.Tensor
    slope_N: paddle.Tensor
    norm_slope_N: paddle.Tensor | None = None


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
    each sample."""

    loss: paddle.Tensor
    accuracy: paddle.Tensor
    losses_N: paddle.Tensor
    correct_N: paddle.Tensor


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
        spec: what is computed. memory: what the head keeps between its steps. emb_BD: this rank's embeddings.
        label_N: the labels of all ranks' samples, in the memory of the host.
        number: of the training step, for the sampling; None: an inspection, in which all classes take part
            and nothing is remembered.
        counts: samples of each rank.
    """

    def __init__(
        self,
        spec: HeadSpec,
        memory: HeadMemory,
        emb_BD: paddle.Tensor,
        label_N: np.ndarray,
        number: int | None,
        counts: Sequence[int],
    ):
        self.spec = spec
        self.memory = memory
        self.bank = memory.bank
        self.margin = spec.margin
        self.emb_BD = emb_BD
        self.number = number
        self.counts = list(counts)
        assert self.counts[distributed.rank()] == emb_BD.shape[0], (self.counts, emb_BD.shape)
        self.num_samples = sum(self.counts)  # of all ranks: what the mean is over
        start = sum(self.counts[: distributed.rank()])
        self._own = slice(start, start + len(emb_BD))
        self.label_N = (
            label_N if spec.sharded else label_N[self._own]
        )  # of the samples that this rank works on

    def own(self, x_N: paddle.Tensor) -> paddle.Tensor:
        """Cut this rank's part [B] out of a per-sample tensor [N]."""
        return x_N[self._own] if self.spec.sharded else x_N

    def gather(self, x_B: paddle.Tensor) -> paddle.Tensor:
        """Collect the samples that this rank works on: all ranks' if the classes are sharded, its own if
        not."""
        return distributed._c_allgather(x_B, self.counts) if self.spec.sharded else x_B

    def gather_all(self, x_N: paddle.Tensor) -> paddle.Tensor:
        """Collect a per-sample tensor of all ranks, for a margin's statistics, which must be the same on
        every rank."""
        return x_N if self.spec.sharded else distributed._c_allgather(x_N, self.counts)

    # -- forward

    def forward(self) -> tuple[Losses, Saved]:
        """Compute the losses, and keep what the backward pass needs: exponentials if they fit into the
        budget."""
        place = self._find_targets()
        samples = self._gather_samples()
        x_ND = samples.rows.values
        if takes_kernels(self.spec, self.bank, self.number is None):
            plain_N = self.memory.similarity.host_targets(x_ND, place.row_P, place.column_P)
            targets = self._move_targets(samples, place.owned_N, plain_N)
            given = (self.spec, self.memory, samples.scaled_ND, place.row_P, place.column_P)
            backend = KernelBackend(*given)
        else:
            column_N = np.zeros(len(self.label_N), np.int64)
            column_N[place.row_P] = place.column_P
            own = None
            if self.bank.selected:
                own = TargetRows(self.memory.similarity, x_ND, to_device(column_N))
            targets = self._move_targets(samples, place.owned_N, own and own.plain_N)
            cosines = self._share_targets(targets)
            most = self.num_samples if self.spec.sharded else max(self.counts)
            given = (self.spec, self.memory, samples.scaled_ND, own, place.owned_N, cosines)
            backend = PaddleBackend(*given, most)
        losses_N, correct_N, lse_N, miss_N = self._join_ranks(targets, self._join_maxima(backend))
        penalty_slope_N = None
        if self.margin and self.margin.trains_norm:
            value_N, penalty_slope_N = self.margin.penalty(samples.norm_N)
            losses_N = losses_N + value_N
        loss, accuracy = self._totals(losses_N, correct_N)
        return (
            Losses(loss, accuracy, losses_N, correct_N),
            Saved(samples, targets, backend, lse_N, miss_N, penalty_slope_N),
        )

    def _gather_samples(self) -> Samples:
        rows = Rows(self.gather(self.emb_BD.astype("float32")), self.margin is not None, zeros=True)
        if self.margin and self.number is not None:
            self.margin.observe(self.gather_all(rows.length))
        scaled_ND = rows.values * self.spec.scale if self.spec.scale != 1.0 else rows.values
        return Samples(rows, scaled_ND, rows.length if self.margin else None)

    def _find_targets(self) -> Places:
        """Let the bank select the classes of the step, and find the samples' own ones among them."""
        shard = self.bank.shard
        local_N = distributed.shard_index(self.label_N, shard.start, shard.stop)
        row_P = np.flatnonzero(local_N >= 0)
        column_P = local_N[row_P]
        if self.spec.sample_rate == 1 or self.number is None:
            self.bank.select(None)
        else:
            index_K = unite(self.memory.drawing.take(self.number), np.unique(column_P))
            # Matrix products on GPUs are faster for a multiple of 8 classes.
            self.bank.select(index_K, spare=-len(index_K) % 8 if asynchronous() else 0)
            self.bank.prefetch(self.memory.drawing.following())
            column_P = np.searchsorted(index_K, column_P)
        order = np.argsort(column_P, kind="stable")  # so that a block's targets are one run
        return Places(row_P[order], column_P[order], to_device((local_N >= 0).astype(np.float32)))

    def _move_targets(
        self, samples: Samples, owned_N: paddle.Tensor, plain_N: paddle.Tensor | None
    ) -> Targets:
        """Apply the margin to the target logits; None: this shard has no class."""
        if plain_N is None:
            return Targets(owned_N, owned_N, owned_N, owned_N, owned_N)
        if not self.margin:
            plain_N = plain_N * owned_N
            return Targets(owned_N, plain_N, plain_N, owned_N)
        moved = change_targets(self.margin, plain_N, samples.norm_N)
        values = [plain_N, moved.cosine, moved.slope]
        values += [] if moved.norm_slope is None else [moved.norm_slope]
        return Targets(owned_N, *paddle.stack(values).multiply_(owned_N).unbind())

    def _share_targets(self, targets: Targets) -> tuple[paddle.Tensor, paddle.Tensor] | None:
        """Share the target cosines of all N samples with every rank, [N, 1] without and with margin. One SUM,
        and only for a margin that changes the other logits by them."""
        if not (self.margin and self.margin.has_others):
            return None
        shared_2N = paddle.stack([targets.plain_N, targets.target_N])
        if self.spec.sharded:
            distributed.all_reduce(shared_2N)
        if self.number is not None:
            self.margin.observe_targets(self.gather_all(shared_2N[0]))
        plain_N1, target_N1 = (row_N.unsqueeze(1) for row_N in shared_2N.unbind())
        return plain_N1, target_N1

    def _join_maxima(self, backend: PaddleBackend | KernelBackend) -> Maxima:
        """Find the largest logit but the target of each sample over all ranks, and this rank's sum of
        exponentials. One MAX."""
        own_N, plain_N, sum_N = backend.forward()
        if not self.spec.sharded or distributed.world_size() == 1:
            return Maxima(own_N, plain_N, sum_N)
        largest_2N = distributed.all_reduce(paddle.stack([own_N, plain_N]), "max")
        max_N, plain_max_N = largest_2N.unbind()
        return Maxima(max_N, plain_max_N, sum_N * (own_N - max_N).exp())

    def _join_ranks(self, targets: Targets, maxima: Maxima) -> tuple[paddle.Tensor, ...]:
        """Compute loss, whether correct, lse and 1 - p(target) of all N samples on every rank, [N] each. One
        SUM."""
        packed_3N = paddle.stack([maxima.sum_N, targets.plain_N, targets.target_N])
        if self.spec.sharded:
            distributed.all_reduce(packed_3N)
        sum_N = packed_3N[0]
        plain_N, target_N = (packed_3N[1:] * self.spec.scale).unbind()
        z_N = maxima.max_N + sum_N.log() - target_N
        loss_N = paddle.log1p((-z_N.abs()).exp()) + z_N.clip(min=0.0)
        return loss_N, plain_N >= maxima.plain_max_N, target_N + loss_N, F.sigmoid(z_N)

    def _totals(self, losses_N: paddle.Tensor, correct_N: paddle.Tensor) -> list[paddle.Tensor]:
        """Compute the mean loss and the share of correct samples over all ranks. One SUM where each rank has
        its own samples."""
        totals = paddle.stack([losses_N, correct_N.astype("float32")]).sum(axis=1)
        if not self.spec.sharded:
            distributed.all_reduce(totals)
        return (totals / self.num_samples).unbind()

    # -- backward

    def backward(self, saved: Saved, grad: paddle.Tensor) -> paddle.Tensor:
        """Compute the loss's gradient by this rank's embeddings, times W (see `distributed`); those of
        centres go to the bank."""
        factor = grad.astype("float32") / self.num_samples
        dtarget_N = -saved.miss_N * saved.targets.slope_N
        grad_ND = saved.backend.backward(saved.lse_N, dtarget_N, saved.samples.scaled_ND * factor, factor)
        if self.margin and self.margin.trains_norm:
            # Of this shard's target cosines by the norms; like that of the cosines, without factors.
            by_norm_N = -saved.miss_N * saved.targets.norm_slope_N
            grad_ND = paddle.concat([grad_ND, by_norm_N.unsqueeze(1)], axis=1)
        grad_BD = distributed._c_reducescatter(grad_ND, self.counts) if self.spec.sharded else grad_ND
        grad_BD = self._embedding_gradient(saved, grad_BD, factor)
        return grad_BD.astype(self.emb_BD.dtype)

    def _embedding_gradient(
        self, saved: Saved, grad_BD: paddle.Tensor, factor: paddle.Tensor
    ) -> paddle.Tensor:
        """Turn the gradient by the scaled embeddings, with that by the norms as a last column if they are
        trained, into that by the embeddings."""
        of_cosine = factor * (self.spec.scale * distributed.world_size())
        if not self.margin:
            return grad_BD * of_cosine
        rows = saved.samples.rows
        if len(grad_BD) != len(rows.values):
            rows = Rows(self.emb_BD.astype("float32"), cosine=True, zeros=True)
        if not self.margin.trains_norm:
            return rows.gradient(grad_BD.multiply_(of_cosine))
        norm_grad_B1 = grad_BD[:, -1:]
        penalty_B1 = self.own(saved.penalty_slope_N).unsqueeze(1)
        of_norm_BD = (norm_grad_B1 + penalty_B1 / self.spec.scale) * of_cosine * rows.values
        return rows.gradient(grad_BD[:, :-1] * of_cosine) + of_norm_BD
