"""Run one forward and backward pass of the softmax head. Symbols and method: softmax.py.

Each phase takes the results of the ones before it and returns a frozen dataclass:

    gather -> Samples -> find_targets -> Targets -> a backend (backends.py) -> maxima and sums -> join the ranks -> Losses, Saved
    Saved, gradient of the loss -> backward -> gradient of this rank's embeddings; those of the centres go to the bank
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import paddle
import paddle.nn.functional as F

from plsc import distributed
from plsc.distributed.device import asynchronous, to_device
from plsc.heads.backends import BackendInput, HeadMemory, KernelBackend, PaddleBackend, takes_kernels
from plsc.heads.blocks import Rows
from plsc.heads.sampling import choose_classes, draw_classes, unite
from plsc.heads.spec import HeadSpec
from plsc.utils.tensors import tensor_of


@dataclass(frozen=True)
class Samples:
    """The samples that this rank works on: those of all ranks if the classes are sharded, else its own.

    rows: embeddings, at length 1 with a margin. scaled_ND: the same times the head's scale. norm_N: their
    lengths; None without a margin. label_N: labels, int64.
    """

    rows: Rows
    scaled_ND: paddle.Tensor
    norm_N: paddle.Tensor | None
    label_N: paddle.Tensor


@dataclass(frozen=True)
class HostPlaces:
    """The P samples whose class is in this shard, in the order of their classes.

    owned_N: 1 of them, 0 of the others, on the device. row_P: which of the N samples. column_P: their
    classes, as the selected ones are counted.
    """

    owned_N: paddle.Tensor
    row_P: np.ndarray
    column_P: np.ndarray


@dataclass(frozen=True)
class DevicePlaces:
    """The same of all samples, on the device. column_N: of a sample whose class is in another shard, any."""

    owned_N: paddle.Tensor
    column_N: paddle.Tensor


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
        spec: what is computed. memory: what the head keeps between its steps. emb_BD, label_B: this rank's samples.
        number: of the training step, for the sampling; None: an inspection, in which all classes take part
            and nothing is remembered.
        counts: samples of each rank; None: the ranks ask each other.
    """

    def __init__(
        self,
        spec: HeadSpec,
        memory: HeadMemory,
        emb_BD: paddle.Tensor,
        label_B: paddle.Tensor,
        number: int | None,
        counts: Sequence[int] | None = None,
    ):
        self.spec = spec
        self.memory = memory
        self.bank = memory.bank
        self.margin = spec.margin
        self.emb_BD = emb_BD
        self.label_B = label_B.flatten()
        self.number = number
        self.counts = distributed.gather_counts(emb_BD.shape[0]) if counts is None else list(counts)
        assert self.counts[distributed.rank()] == emb_BD.shape[0], (self.counts, emb_BD.shape)
        self.num_samples = sum(self.counts)  # of all ranks: what the mean is over

    def own(self, x_N: paddle.Tensor) -> paddle.Tensor:
        """Cut this rank's part [B] out of a per-sample tensor [N]."""
        if not self.spec.sharded:
            return x_N
        start = sum(self.counts[: distributed.rank()])
        return x_N[start : start + self.counts[distributed.rank()]]

    def gather(self, x_B: paddle.Tensor) -> paddle.Tensor:
        """Collect the samples that this rank works on: all ranks' if the classes are sharded, its own if
        not."""
        return distributed.gather_rows(x_B, self.counts) if self.spec.sharded else x_B

    def gather_all(self, x_N: paddle.Tensor) -> paddle.Tensor:
        """Collect a per-sample tensor of all ranks, for a margin's statistics, which must be the same on
        every rank."""
        return x_N if self.spec.sharded else distributed.gather_rows(x_N, self.counts)

    # -- forward
    # ------------------------------------------------------------------------------------------------------------

    def forward(self, keep: bool | None = None) -> tuple[Losses, Saved]:
        """Compute the losses. keep: whether exponentials are kept for backward; None: if they fit into the
        budget."""
        samples = self._gather_samples()
        most = self.num_samples if self.spec.sharded else max(self.counts)
        given: dict = {"scaled_ND": samples.scaled_ND, "most": most}
        place = self._select(samples)
        if takes_kernels(self.spec, self.bank, self.number is None):
            plain_N = self.memory.similarity.host_targets(samples.rows.values, place.row_P, place.column_P)
            given |= {"row_P": place.row_P, "column_P": place.column_P}
            make = KernelBackend
        else:
            place = place if isinstance(place, DevicePlaces) else self._to_device(place, len(samples.label_N))
            rows = plain_N = None
            if self.bank.selected:
                rows = self.memory.similarity.targets(samples.rows.values, place.column_N)
                plain_N = rows.plain_N
            given |= {"owned_N": place.owned_N, "column_N": place.column_N, "targets": rows}
            make = PaddleBackend
        targets = self._move_targets(samples, place.owned_N, plain_N)
        backend = make(
            self.spec, self.memory, BackendInput(cosines=self._share_targets(targets), **given), keep
        )
        losses_N, correct_N, lse_N, miss_N, owned_N = self._join_ranks(targets, self._join_maxima(backend))
        penalty_slope_N = None
        if self.margin and self.margin.trains_norm:
            value_N, penalty_slope_N = self.margin.penalty(samples.norm_N)
            losses_N = losses_N + value_N
        loss, accuracy, stray = self._totals(losses_N, correct_N, owned_N)
        return (
            Losses(loss, accuracy, losses_N, correct_N, stray),
            Saved(samples, targets, backend, lse_N, miss_N, penalty_slope_N),
        )

    def _gather_samples(self) -> Samples:
        rows = Rows(self.gather(self.emb_BD.astype("float32")), self.margin is not None, zeros=True)
        if self.margin and self.number is not None:
            self.margin.observe(self.gather_all(rows.length))
        scaled_ND = rows.values * self.spec.scale if self.spec.scale != 1.0 else rows.values
        norm_N = rows.length if self.margin else None
        return Samples(rows, scaled_ND, norm_N, self.gather(self.label_B))

    def _select(self, samples: Samples) -> HostPlaces | DevicePlaces:
        """Let the bank select the classes of the step, on the device where the host would wait, and find the
        samples' own ones."""
        shard = self.bank.shard
        if not (asynchronous() and self.bank.on_device):
            return self._select_on_host(samples.label_N.numpy())
        local_N = samples.label_N - shard.start if shard.start else samples.label_N
        column_N = local_N.clip(0, max(0, shard.size - 1))
        own_N = column_N == local_N if shard.size else paddle.zeros([len(local_N)], "bool")
        owned_N = own_N.astype("float32")
        if self.spec.sample_rate == 1 or self.number is None or not shard.size:
            self.bank.select(None)
            return DevicePlaces(owned_N, column_N)
        drawn = self.memory.drawing.take(self.number)
        # Matrix products on GPUs are faster for a multiple of 8 classes.
        spare = 1 + -(len(drawn) + 1 + len(owned_N)) % 8
        padded = to_device(np.append(drawn, np.full(spare, shard.size)))
        index_K, column_N = unite(padded, column_N, own_N, shard.size)
        self.bank.select_on_device(index_K, len(drawn))
        return DevicePlaces(owned_N, column_N)

    def _select_on_host(self, label_N: np.ndarray) -> HostPlaces:
        shard = self.bank.shard
        row_P = np.flatnonzero((shard.start <= label_N) & (label_N < shard.stop))
        column_P = self._select_classes(label_N[row_P] - shard.start)
        order = np.argsort(column_P, kind="stable")  # so that a block's targets are one run
        owned_N = np.zeros(len(label_N), np.float32)
        owned_N[row_P] = 1.0
        return HostPlaces(tensor_of(owned_N), row_P[order], column_P[order])

    def _select_classes(self, class_P: np.ndarray) -> np.ndarray:
        """Let the bank select the classes of this step -> the targets' classes as the selected ones are
        counted."""
        if self.spec.sample_rate == 1 or self.number is None:
            self.bank.select(None)
            return class_P
        drawn_by = self.bank.shard, self.spec.sample_rate, self.spec.seed
        index_K = choose_classes(np.unique(class_P), *drawn_by, self.number)
        self.bank.select(index_K)
        self.bank.prefetch(partial(draw_classes, *drawn_by, self.number + 1))
        return np.searchsorted(index_K, class_P)

    def _to_device(self, place: HostPlaces, samples: int) -> DevicePlaces:
        column_N = np.zeros(samples, np.int64)
        column_N[place.row_P] = place.column_P
        return DevicePlaces(place.owned_N, tensor_of(column_N))

    def _move_targets(
        self, samples: Samples, owned_N: paddle.Tensor, plain_N: paddle.Tensor | None
    ) -> Targets:
        """Apply the margin to the target logits; None: this shard has no class."""
        if plain_N is None:
            return Targets(owned_N, owned_N, owned_N, owned_N, owned_N)
        if not self.margin:
            plain_N = plain_N * owned_N
            return Targets(owned_N, plain_N, plain_N, owned_N)
        moved = self.margin(plain_N, samples.norm_N)
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
        """Compute loss, whether correct, lse, 1 - p(target) and the number of shards that have the class, of
        all N samples on every rank, [N] each. One SUM."""
        packed_4N = paddle.stack([maxima.sum_N, targets.plain_N, targets.target_N, targets.owned_N])
        if self.spec.sharded:
            distributed.all_reduce(packed_4N)
        sum_N = packed_4N[0]
        plain_N, target_N = (packed_4N[1:3] * self.spec.scale).unbind()
        z_N = maxima.max_N + sum_N.log() - target_N
        loss_N = paddle.log1p((-z_N.abs()).exp()) + z_N.clip(min=0.0)
        return loss_N, plain_N >= maxima.plain_max_N, target_N + loss_N, F.sigmoid(z_N), packed_4N[3]

    def _totals(
        self, losses_N: paddle.Tensor, correct_N: paddle.Tensor, owned_N: paddle.Tensor
    ) -> tuple[paddle.Tensor, ...]:
        """Compute the mean loss and the share of correct samples over all ranks, and count the labels that
        are in no shard."""
        totals = paddle.stack([losses_N, correct_N.astype("float32"), owned_N]).sum(axis=1)
        if not self.spec.sharded:
            distributed.all_reduce(totals)
        loss, accuracy, _ = (totals / self.num_samples).unbind()
        return loss, accuracy, paddle.scale(totals[2], -1.0, self.num_samples).astype("int64")

    # -- backward
    # -----------------------------------------------------------------------------------------------------------

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
        grad_BD = distributed.reduce_scatter_rows(grad_ND, self.counts) if self.spec.sharded else grad_ND
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
