"""Run the softmax head forward and backward once. softmax.py defines the symbols and the method.

The forward pass has these steps:

1. Select the step's classes, and find the samples' own classes among them.
2. Gather all ranks' embeddings.
3. Let a backend (backends.py) compute the target logits.
4. Let the margin change the target logits.
5. Let the backend compute the maximum and the sum of exponentials over the other logits.
6. Combine all ranks' results into the losses.

The backward pass hands the loss gradient to the backend. The backend computes the embeddings'
gradient, and stores the centres' gradient in the selection.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import paddle
import paddle.nn.functional as F

from plsc import distributed
from plsc.distributed.device import to_device
from plsc.errors import UserError
from plsc.heads.backends import HeadMemory, KernelBackend, PaddleBackend, TargetPositions, takes_kernels
from plsc.heads.banks.bank import Selection
from plsc.heads.blocks import Vectors
from plsc.heads.constants import filled
from plsc.heads.margins import Target, change_targets
from plsc.heads.sampling import merge_classes
from plsc.heads.spec import HeadSpec


@dataclass
class HeadOutput:
    """The result of calling the head once.

    Attributes:
        loss: mean loss over all ranks' N samples, scalar, the same on every rank. Call backward() on
            it.
        accuracy: top-1 accuracy, scalar, the same on every rank. It is the share of the N samples whose
            target logit without margin is larger than all other logits. A tie is not a hit.
        losses_B: each sample's loss on this rank, float32 [B].
        correct_B: whether each sample on this rank is a hit, bool [B].
        selection: holds the rows in this rank's shard that took part, and after the backward pass their
            gradients.
    """

    loss: paddle.Tensor
    accuracy: paddle.Tensor
    losses_B: paddle.Tensor
    correct_B: paddle.Tensor
    selection: Selection


class HeadStep:
    """Computes a head's step. If the classes are sharded, this rank works on all ranks' samples.
    Otherwise it works on its own samples.

    Args:
        spec: margin, scale, sampling and the loss's other properties.
        memory: state that the head keeps between its steps.
        emb_BD: this rank's embeddings, float [B, D].
        label_N: all ranks' labels, int64 [N], in host memory.
        number: training step, which decides the sampling. None means an inspection: all
            classes take part, and the margin's statistics stay unchanged.
        counts: each rank's sample count.

    Attributes that `forward` sets for `backward`:
        selection: rows in this rank's shard that take part.
        vectors: gathered embeddings [N, D], scaled to length 1 if there is a margin.
        scaled_ND: the values of `vectors` times the scale.
        plain_N: target logits divided by the scale, without margin, or 0 if the sample's class is in another
            shard.
        targets: target logits divided by the scale, with margin, and their derivatives with respect to
            `plain_N`. All are 0 if the class is in another shard.
        backend: backend that computes the logits.
        lse_N: logarithm of each sample's softmax denominator.
        rest_N: 1 - p(target) for each sample.
        penalty_slope_N: the margin penalty's derivative with respect to the norm, or None if the margin
            has no penalty.
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
        self.margin = spec.margin
        self.emb_BD = emb_BD
        self.number = number
        self.counts = list(counts)
        assert self.counts[distributed.rank()] == emb_BD.shape[0], (self.counts, emb_BD.shape)
        self._is_over = False
        self.num_samples = sum(self.counts)  # the mean loss is over all ranks' samples
        start = sum(self.counts[: distributed.rank()])
        self._own_samples = slice(start, start + len(emb_BD))
        self.label_N = label_N if spec.sharded else label_N[self._own_samples]

    def select_own(self, x_N: paddle.Tensor) -> paddle.Tensor:
        """Return this rank's part [B] of a per-sample tensor [N]."""
        return x_N[self._own_samples] if self.spec.sharded else x_N

    def gather_all(self, x_N: paddle.Tensor) -> paddle.Tensor:
        """Return a per-sample tensor of all ranks' samples. A margin's statistics need it, since they must
        be the same on every rank. A sharded head already has all samples."""
        return x_N if self.spec.sharded else distributed._c_allgather(x_N, self.counts)

    def forward(self) -> HeadOutput:
        """Compute the losses, and keep what the backward pass needs. It keeps the exponentials if they fit
        into the budget."""
        positions = self._find_targets()
        emb_ND = self.emb_BD.astype("float32")
        if self.spec.sharded:
            emb_ND = distributed._c_allgather(emb_ND, self.counts)
        self.vectors = Vectors(emb_ND, self.margin is not None)
        if self.margin and self.number is not None:
            self.margin.observe(self.gather_all(self.vectors.length))
        x_ND = self.vectors.values
        self.scaled_ND = x_ND * self.spec.scale if self.spec.scale != 1.0 else x_ND
        use_kernels = takes_kernels(self.spec, self.selection, self.number is None)
        backend_class = KernelBackend if use_kernels else PaddleBackend
        self.backend = backend_class(self.spec, self.memory, self.selection, x_ND, self.scaled_ND, positions)
        self.plain_N, self.targets = self._move_targets(positions.owned_N, self.backend.plain_N)
        shared = self._share_targets()
        self._statistics = self.margin.statistics if self.margin else None
        maxima = self._join_maxima(*self.backend.forward(shared))
        losses_N, correct_N, self.lse_N, self.rest_N = self._join_ranks(*maxima)
        self.penalty_slope_N = None
        if self.margin and self.margin.penalty:
            penalty_N, self.penalty_slope_N = self.margin.penalty(self.vectors.length)
            losses_N = losses_N + penalty_N
        totals = paddle.stack([losses_N, correct_N.astype("float32")]).sum(axis=1)
        if not self.spec.sharded:
            distributed.all_reduce(totals)  # each rank has different samples
        loss, accuracy = (totals / self.num_samples).unbind()
        return HeadOutput(
            loss, accuracy, self.select_own(losses_N), self.select_own(correct_N), self.selection
        )

    def _find_targets(self) -> TargetPositions:
        """Select the step's classes, and find the samples' own classes among them."""
        bank = self.memory.bank
        shard = bank.shard
        local_N = distributed.shard_index(self.label_N, shard.start, shard.stop)
        sample_P = np.flatnonzero(local_N >= 0)
        class_P = local_N[sample_P]
        if self.spec.sample_rate == 1 or self.number is None:
            self.selection = bank.select(None)
            column_P = class_P
        else:
            index_K = merge_classes(self.memory.drawing.take(self.number), np.unique(class_P))
            self.selection = bank.select(index_K)
            self.selection.prefetch(self.memory.drawing.following())
            column_P = np.searchsorted(index_K, class_P)
        order = np.argsort(column_P, kind="stable")  # makes a block's targets contiguous
        return TargetPositions(sample_P[order], column_P[order], to_device((local_N >= 0).astype(np.float32)))

    def _move_targets(self, owned_N: paddle.Tensor, plain_N: paddle.Tensor) -> tuple[paddle.Tensor, Target]:
        """Apply the margin to this shard's target cosines. Return the values of `plain_N` and
        `targets`."""
        if not self.margin:
            plain_N = plain_N * owned_N
            return plain_N, Target(plain_N, owned_N)
        moved = change_targets(self.margin, plain_N, self.vectors.length)
        slope_N = filled(plain_N.shape, 1.0) if self.spec.straight_through else moved.slope
        values = [plain_N, moved.cosine, slope_N]
        values += [] if moved.norm_slope is None else [moved.norm_slope]
        plain_N, *changed = paddle.stack(values).multiply_(owned_N).unbind()
        return plain_N, Target(*changed)

    def _share_targets(self) -> tuple[paddle.Tensor, paddle.Tensor] | None:
        """Share all N samples' target cosines with every rank. Return them without and with margin,
        each [N, 1], or None if the margin does not change the other logits.

        Collectives: one all_reduce SUM of [2, N], only for a margin that changes the other logits.
        """
        if not (self.margin and self.margin.others):
            return None
        shared_2N = paddle.stack([self.plain_N, self.targets.cosine])
        if self.spec.sharded:
            distributed.all_reduce(shared_2N)
        if self.number is not None:
            self.margin.observe_targets(self.gather_all(shared_2N[0]))
        plain_N1, target_N1 = (cos_N.unsqueeze(1) for cos_N in shared_2N.unbind())
        return plain_N1, target_N1

    def _join_maxima(
        self, largest_N: paddle.Tensor, plain_N: paddle.Tensor, sum_N: paddle.Tensor
    ) -> tuple[paddle.Tensor, paddle.Tensor, paddle.Tensor]:
        """Find each sample's largest logit over all ranks, except the target.

        Return three tensors [N]. The first is the largest logit after the margin has changed the other
        logits. The second is the largest logit before. The third is this rank's sum of exp(logit - the
        first).

        Collectives: one all_reduce MAX of [2, N].
        """
        if not self.spec.sharded or distributed.world_size() == 1:
            return largest_N, plain_N, sum_N
        max_N, plain_max_N = distributed.all_reduce(paddle.stack([largest_N, plain_N]), "max").unbind()
        return max_N, plain_max_N, sum_N * (largest_N - max_N).exp()

    def _join_ranks(
        self, max_N: paddle.Tensor, plain_max_N: paddle.Tensor, sum_N: paddle.Tensor
    ) -> tuple[paddle.Tensor, ...]:
        """Compute four tensors [N] for all ranks' samples: the loss, whether the sample is a hit,
        the denominator's logarithm, and 1 - p(target).

        Collectives: one all_reduce SUM of [3, N].
        """
        packed_3N = paddle.stack([sum_N, self.plain_N, self.targets.cosine])
        if self.spec.sharded:
            distributed.all_reduce(packed_3N)
        sum_N = packed_3N[0]
        plain_N, target_N = (packed_3N[1:] * self.spec.scale).unbind()
        z_N = max_N + sum_N.log() - target_N
        loss_N = paddle.log1p((-z_N.abs()).exp()) + z_N.clip(min=0.0)
        return loss_N, plain_N > plain_max_N, target_N + loss_N, F.sigmoid(z_N)

    def backward(self, grad: paddle.Tensor) -> paddle.Tensor:
        """Compute the loss gradient with respect to this rank's embeddings, times W (see "Loss convention"
        in plsc/distributed/collectives.py). Store the centres' gradient in the selection.

        Args:
            grad: loss gradient, scalar.

        Raises UserError on a second call, or if the centres have changed since `forward`.
        """
        if self._is_over:
            raise UserError("a head's step has one backward pass; call the head again for another one")
        self.selection.check_current()
        self._is_over = True
        factor = grad.astype("float32") / self.num_samples
        dtarget_N = -self.rest_N * self.targets.slope
        with self._statistics_of_forward():
            grad_ND = self.backend.backward(self.lse_N, dtarget_N, self.scaled_ND * factor, factor)
        if not self.spec.sharded:
            for by_rows in self.selection.gradients().values():
                distributed.all_reduce(by_rows)
        self.memory.ready = self.selection
        if self.targets.norm_slope is not None:
            # Gradient with respect to the norms, through this shard's target cosines. `_embedding_gradient`
            # multiplies it by the scale and divides it by the sample count.
            by_norm_N = -self.rest_N * self.targets.norm_slope
            grad_ND = paddle.concat([grad_ND, by_norm_N.unsqueeze(1)], axis=1)
        grad_BD = distributed._c_reducescatter(grad_ND, self.counts) if self.spec.sharded else grad_ND
        return self._embedding_gradient(grad_BD, factor).astype(self.emb_BD.dtype)

    @contextlib.contextmanager
    def _statistics_of_forward(self) -> Iterator[None]:
        """Give the margin the statistics that it had in the forward pass. Another step may have run since
        then, and a recomputed block must give the same logits."""
        if not self.margin:
            yield
            return
        current = self.margin.statistics
        self.margin.statistics = self._statistics
        try:
            yield
        finally:
            self.margin.statistics = current

    def _embedding_gradient(self, grad_BD: paddle.Tensor, factor: paddle.Tensor) -> paddle.Tensor:
        """Turn the gradient with respect to the scaled embeddings into the gradient with respect to the
        embeddings. If the targets depend on the norms, the last column is the gradient with respect to the
        norms."""
        cosine_factor = factor * (self.spec.scale * distributed.world_size())
        if not self.margin:
            return grad_BD * cosine_factor
        vectors = self.vectors
        if len(grad_BD) != len(vectors.values):
            vectors = Vectors(self.emb_BD.astype("float32"), cosine=True)
        norm_grad_B1 = 0.0
        if self.targets.norm_slope is not None:
            grad_BD, norm_grad_B1 = grad_BD[:, :-1], grad_BD[:, -1:]
        if self.penalty_slope_N is not None:
            penalty_B1 = self.select_own(self.penalty_slope_N).unsqueeze(1)
            norm_grad_B1 = norm_grad_B1 + penalty_B1 / self.spec.scale
        if not paddle.is_tensor(norm_grad_B1):
            return vectors.gradient(grad_BD.multiply_(cosine_factor))
        return vectors.gradient(grad_BD * cosine_factor) + norm_grad_B1 * cosine_factor * vectors.values
