"""Run the forward and backward pass of the softmax head for one training step.

softmax.py's docstring explains the method. Each letter below stands for a count. The letters appear in
shapes, such as [B, D], and at the end of names. For example, `emb_BD` is a tensor with the shape [B, D].

    B  samples on this rank
    N  samples that this rank processes: all ranks' samples if the classes are sharded, otherwise its own
    P  samples whose class is in this rank's shard (the range of classes whose centres this rank stores)
    W  ranks
    D  embedding size
    K  classes in this rank's shard that take part in the step

There is one exception. In the argument `label_N`, N counts all ranks' samples in any case.

A sample's target logit is the logit for its class. Its target cosine is the cosine between its embedding and
the centre of its class. The logits for all other classes are called its other logits.

The forward pass consists of these operations:

1. Select the step's classes, and find each sample's class among them.
2. Gather all ranks' embeddings if the classes are sharded.
3. Let a backend (backends.py) compute the target cosines, or the target logits if the head has no margin.
4. Let the margin change the target cosines.
5. Let the backend compute the maximum and the sum of exponentials over each sample's other logits.
6. Combine all ranks' results into the losses.

The backward pass gives the derivatives of the loss to the backend. The backend returns the gradient with
respect to the embeddings. The gradients with respect to the centres are stored in `HeadOutput.selection`.
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
from plsc.heads.backends import (
    HeadMemory,
    KernelBackend,
    Losses,
    PaddleBackend,
    TargetPositions,
    takes_kernels,
)
from plsc.heads.banks.bank import Selection
from plsc.heads.blocks import Vectors
from plsc.heads.constants import filled
from plsc.heads.margins import Target, apply_margin
from plsc.heads.sampling import merge_classes
from plsc.heads.spec import HeadSpec


@dataclass
class HeadOutput:
    """What one call to the head returns.

    Attributes:
        loss: mean loss over all ranks' samples, a scalar, the same on every rank. `loss.backward()` computes
            the gradients.
        accuracy: top-1 accuracy, a scalar, the same on every rank. It is the share of hits among all ranks'
            samples. A sample is a hit if its target logit is larger than all its other logits. The logits are
            compared before the margin or `HeadSpec.filter_above` changes any of them. A tie is not a hit.
        losses_B: loss for each sample on this rank, float32 [B].
        correct_B: whether each sample on this rank is a hit, bool [B].
        selection: the rows with the centres that took part in the step, from this rank's shard. After the
            backward pass, it also contains the gradients with respect to these rows.
    """

    loss: paddle.Tensor
    accuracy: paddle.Tensor
    losses_B: paddle.Tensor
    correct_B: paddle.Tensor
    selection: Selection


class HeadStep:
    """Computes one training step of a head.

    If the classes are sharded, this rank processes all ranks' samples. Otherwise it processes only its
    own samples, and N is the same number as B.

    Args:
        spec: margin, scale, sampling and the loss's other properties.
        memory: state that the head keeps between its steps.
        emb_BD: this rank's embeddings, float [B, D].
        label_N: all ranks' labels, int64, in host memory. If the classes are not sharded, `HeadStep` selects
            this rank's labels.
        number: training step number, which determines which classes are sampled. If it is None, the head is
            only inspected: all classes take part, and the margin's statistics stay unchanged.
        counts: how many samples each rank has, in rank order.

    Attributes that `forward` sets for `backward`:
        selection: the rows in this rank's shard that take part in the step.
        vectors: the N samples' embeddings, normalised to length 1 if there is a margin.
        scaled_ND: the embeddings in `vectors` times the head's scale.
        plain_N: each sample's target cosine before the margin is applied. If the head has no margin, it is
            the target logit. The number is 0 if the sample's class is in another shard.
        targets: the target cosines after the margin is applied, and their derivatives with respect to
            `plain_N` and to the embeddings' norms. With `spec.straight_through`, the derivative with respect
            to `plain_N` is taken as 1. If the head has no margin, `targets` contains the target logits, and
            the derivative is 1. All numbers are 0 if the sample's class is in another shard.
        backend: backend that computes the logits.
        losses: the N samples' losses, and the numbers that the gradients need.
        penalty_slope_N: derivative of the margin's penalty with respect to the embedding's norm. None if the
            margin has no penalty.
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
        self.num_samples = sum(self.counts)  # the loss is the mean over all ranks' samples
        start = sum(self.counts[: distributed.rank()])
        self._own_samples = slice(start, start + len(emb_BD))
        self.label_N = label_N if spec.sharded else label_N[self._own_samples]

    def select_own(self, x_N: paddle.Tensor) -> paddle.Tensor:
        """Return this rank's elements [B] from a tensor [N] with one element per sample."""
        return x_N[self._own_samples] if self.spec.sharded else x_N

    def gather_all(self, x_N: paddle.Tensor) -> paddle.Tensor:
        """Return a tensor with one element for each sample on all ranks, from a tensor [N] with one element
        per sample that this rank processes.

        If the classes are sharded, these are the same samples, so `x_N` is returned. A margin computes its
        statistics from the result. The statistics are therefore the same on every rank.

        Collectives: one all_gather if the classes are not sharded.
        """
        return x_N if self.spec.sharded else distributed._c_allgather(x_N, self.counts)

    def forward(self) -> HeadOutput:
        """Compute the losses, and keep what the backward pass needs. The exponentials of the logits are kept
        only if they fit into the memory limit `spec.budget`."""
        positions = self._select_classes()
        emb_ND = self.emb_BD.astype("float32")
        if self.spec.sharded:
            emb_ND = distributed._c_allgather(emb_ND, self.counts)
        self.vectors = Vectors(emb_ND, self.margin is not None)
        if self.margin and self.number is not None:
            self.margin.observe(self.gather_all(self.vectors.length))
        x_ND = self.vectors.values
        self.scaled_ND = self.vectors.times(self.spec.scale)
        by_kernels = takes_kernels(self.spec, self.selection, self.number is None)
        self._factor_is_last = by_kernels or self.spec.targets_apart
        backend_class = KernelBackend if by_kernels and self.selection.count else PaddleBackend
        self.backend = backend_class(self.spec, self.memory, self.selection, x_ND, self.scaled_ND, positions)
        self.plain_N, self.targets = self._apply_margin(positions.owned_N, self.backend.plain_N)
        shared = self._share_targets()
        self._statistics = self.margin.statistics if self.margin else None
        maxima = self._reduce_maxima(*self.backend.forward(shared))
        self.losses, correct_N = self._compute_losses(*maxima)
        losses_N = self.losses.loss_N
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

    def _select_classes(self) -> TargetPositions:
        """Select the step's classes, and find each sample's class among them. If the head samples classes,
        also start to read the rows that are drawn for the next step."""
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
        # A backend processes a block of neighbouring classes at a time. The samples are sorted by class, so
        # that the samples whose classes are in the same block are neighbours, too.
        order = np.argsort(column_P, kind="stable")
        owned_N = to_device((local_N >= 0).astype(np.float32)) if len(sample_P) < len(local_N) else None
        return TargetPositions(sample_P[order], column_P[order], owned_N)

    def _apply_margin(
        self, owned_N: paddle.Tensor | None, plain_N: paddle.Tensor
    ) -> tuple[paddle.Tensor, Target]:
        """Apply the margin to the target cosines. Return the attributes `plain_N` and `targets`.

        Args:
            owned_N: 1 if the sample's class is in this shard, otherwise 0, float32 [N]. None if all N
                samples' classes are in this shard.
            plain_N: target cosines before the margin is applied, or target logits if the head has no margin,
                float32 [N]. If the sample's class is in another shard, the number is arbitrary. The results
                then contain 0.
        """
        if not self.margin:
            slope_N = filled(plain_N.shape, 1.0) if owned_N is None else owned_N
            plain_N = plain_N if owned_N is None else plain_N * owned_N
            return plain_N, Target(plain_N, slope_N)
        moved = apply_margin(self.margin, plain_N, self.vectors.length)
        slope_N = filled(plain_N.shape, 1.0) if self.spec.straight_through else moved.slope
        values = [plain_N, moved.cosine, slope_N]
        values += [] if moved.norm_slope is None else [moved.norm_slope]
        if owned_N is not None:
            values = paddle.stack(values).multiply_(owned_N).unbind()
        plain_N, *changed = values
        return plain_N, Target(*changed)

    def _share_targets(self) -> tuple[paddle.Tensor, paddle.Tensor] | None:
        """Give the target cosines for all N samples to every rank, if the margin changes the other logits.

        Returns two tensors [N, 1]: the target cosines before the margin is applied, and the target cosines
        after it is applied. If the margin does not change the other logits, returns None.

        Collectives:
            - none if the margin does not change the other logits.
            - one all_reduce SUM of [2, N] if the margin changes them, and the classes are sharded.
            - one all_gather of [N] (in `gather_all`) if the margin changes them, and the classes are not
              sharded. There is no such collective if the head is only inspected.
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

    def _reduce_maxima(
        self, largest_N: paddle.Tensor, plain_largest_N: paddle.Tensor, sum_N: paddle.Tensor
    ) -> tuple[paddle.Tensor, paddle.Tensor, paddle.Tensor]:
        """Find each sample's largest other logit over all ranks.

        The margin or `HeadSpec.filter_above` may change the other logits. A plain logit is a logit before
        this change.

        Args:
            largest_N: each sample's largest other logit on this rank, float32 [N].
            plain_largest_N: each sample's largest plain other logit on this rank, float32 [N].
            sum_N: each sample's sum of exp(other logit - largest_N) on this rank, float32 [N].

        Returns three tensors [N]: the largest other logit on all ranks, the largest plain other logit on all
        ranks, and this rank's sum of exp(other logit - first result).

        Collectives: one all_reduce MAX of [2, N] if the classes are sharded.
        """
        if not self.spec.sharded or distributed.world_size() == 1:
            return largest_N, plain_largest_N, sum_N
        maxima_2N = distributed.all_reduce(paddle.stack([largest_N, plain_largest_N]), "max")
        max_N, plain_max_N = maxima_2N.unbind()
        return max_N, plain_max_N, sum_N * (largest_N - max_N).exp()

    def _compute_losses(
        self, max_N: paddle.Tensor, plain_max_N: paddle.Tensor, sum_N: paddle.Tensor
    ) -> tuple[Losses, paddle.Tensor]:
        """Compute the losses from the results of `_reduce_maxima`.

        Returns the losses, and whether each sample is a hit, bool [N].

        Collectives: one all_reduce SUM of [3, N] if the classes are sharded.
        """
        packed_3N = paddle.stack([sum_N, self.plain_N, self.targets.cosine])
        if self.spec.sharded:
            distributed.all_reduce(packed_3N)
        sum_N = packed_3N[0]
        plain_N, target_N = (packed_3N[1:] * self.spec.scale).unbind()
        other_N = max_N + sum_N.log()
        z_N = other_N - target_N
        loss_N = paddle.log1p((-z_N.abs()).exp()) + z_N.clip(min=0.0)
        return Losses(other_N, target_N, loss_N, F.sigmoid(z_N)), plain_N > plain_max_N

    def backward(self, grad: paddle.Tensor) -> paddle.Tensor:
        """Return the gradient with respect to this rank's embeddings, times W. The gradients with respect to
        the centres are stored in `selection`.

        Later, the backbone's gradients are averaged over the ranks, which divides them by W. The factor W
        compensates for this division (see "Loss convention" in plsc/distributed/collectives.py).

        Args:
            grad: derivative with respect to the loss, a scalar. It is 1 after `loss.backward()`. If
                `backward()` is called on a number that depends on the loss, it is the derivative of this
                number.

        Raises UserError in these cases:
            - This method was called before.
            - The centres have changed since `forward`.
            - The gradients from an earlier step's backward pass are still stored. Neither `update` has used
              them, nor has `clear_gradients` dropped them.
        """
        if self._is_over:
            raise UserError("a head's step has one backward pass; call the head again for another one")
        if self.memory.ready:
            raise UserError(
                "no update() has used the class centres' gradients of the last backward pass; call the "
                "head's update() or clear_gradients() before the next backward pass"
            )
        self.selection.check_current()
        self._is_over = True
        factor = grad.astype("float32") / self.num_samples
        with self._statistics_of_forward():
            grad_ND = self.backend.backward(self.losses, self.targets.slope, self.scaled_ND, factor)
        if not self.spec.sharded:
            for by_rows in self.selection.gradients().values():
                distributed.all_reduce(by_rows)
        self.memory.ready = self.selection
        if self.targets.norm_slope is not None:
            # The gradient with respect to the embeddings' norms, from the target cosines in this shard, still
            # without the scale. `_embedding_gradient` multiplies by the scale.
            by_norm_N = -self.losses.rest_N * self.targets.norm_slope
            by_norm_N = by_norm_N if self._factor_is_last else by_norm_N * factor
            grad_ND = paddle.concat([grad_ND, by_norm_N.unsqueeze(1)], axis=1)
        grad_BD = distributed._c_reducescatter(grad_ND, self.counts) if self.spec.sharded else grad_ND
        penalty_N = self.penalty_slope_N
        if penalty_N is not None and not self._factor_is_last:
            penalty_N = penalty_N * factor
        lacking = factor if self._factor_is_last else 1.0
        return self._embedding_gradient(grad_BD, penalty_N, lacking).astype(self.emb_BD.dtype)

    @contextlib.contextmanager
    def _statistics_of_forward(self) -> Iterator[None]:
        """In the `with` block, give the margin the statistics that it had in this step's forward pass.

        Another step may have changed the statistics since then. The backward pass may compute logits again,
        and they must be the same as in the forward pass.
        """
        if not self.margin:
            yield
            return
        current = self.margin.statistics
        self.margin.statistics = self._statistics
        try:
            yield
        finally:
            self.margin.statistics = current

    def _embedding_gradient(
        self, grad_BD: paddle.Tensor, penalty_N: paddle.Tensor | None, factor: paddle.Tensor | float
    ) -> paddle.Tensor:
        """Convert the gradient with respect to `scaled_ND` to the gradient with respect to `emb_BD`.

        Args:
            grad_BD: gradient with respect to this rank's rows in `scaled_ND`, [B, D]. If the target cosines
                depend on the embeddings' norms, `grad_BD` has one more column. This column times the scale is
                the gradient with respect to the norms.
            penalty_N: derivative of the margin's penalty with respect to the norm [N], or None.
            factor: `grad` (see `backward`), divided by the number of samples. If `grad_BD` and
                `penalty_N` contain this factor already, `factor` is 1. This method multiplies both by
                `factor` and by W. It also multiplies `grad_BD` by the scale.
        """
        cosine_factor = factor * (self.spec.scale * distributed.world_size())
        if not self.margin:
            return grad_BD * cosine_factor
        vectors = self.vectors
        if len(grad_BD) != len(vectors.values):
            vectors = Vectors(self.emb_BD.astype("float32"), cosine=True)
        norm_grad_B1 = 0.0
        if self.targets.norm_slope is not None:
            grad_BD, norm_grad_B1 = grad_BD[:, :-1], grad_BD[:, -1:]
        if penalty_N is not None:
            penalty_B1 = self.select_own(penalty_N).unsqueeze(1)
            norm_grad_B1 = norm_grad_B1 + penalty_B1 / self.spec.scale
        if not paddle.is_tensor(norm_grad_B1):
            return vectors.gradient(grad_BD * cosine_factor)
        return vectors.gradient(grad_BD * cosine_factor) + norm_grad_B1 * cosine_factor * vectors.values
