"""Compute softmax cross entropy over classes that are sharded over the ranks, with or without a margin on the
target.

    B samples on this rank   N samples on all ranks   W ranks   D embedding size
    C classes   S classes in this rank's shard   K classes in the shard that the step uses (K = S without
    sampling)   b classes in a block   J sub-centres per class (1 except for sub-centre ArcFace)
    P samples whose class is in this rank's shard

The full [N, K] matrix of logits never exists. The head computes the shard in blocks of classes. For each
sample, a block yields the maximum and the sum of exponentials over the *other* logits, which are the logits
that are not the sample's target. Let M be the maximum over all ranks, R = sum exp(other - M), and t the
target logit after the margin. Then

    z = M + log R - t        loss = softplus(z)        p(target) - 1 = -sigmoid(z)

This form never subtracts nearly equal numbers. The backward pass is written by hand, block by block. If all
exponentials fit into the budget, they are kept, and a step takes 3 matrix products. Otherwise they are
recomputed, and a step takes 4.

Collectives in one step, in this order:

- all_gather of the embeddings [N, D]
- all_reduce SUM of the target cosines [2, N], only for a margin that changes the other logits
- all_reduce MAX of M with and without that change [2, N]
- all_reduce SUM of (R, target, t) [3, N]
- in the backward pass, reduce-scatter of the embeddings' gradient [N, D], with one more column if the
  target cosines depend on the embeddings' norms
- in the update, all_reduce SUM of two numbers, only for LARS

The labels arrive with the previous step (`Trainer._summarise_step`). PLSC also runs `_c_reducescatter` on the
losses. This head does not need it, because every rank knows all N losses after the last SUM. The centres'
gradients never travel between ranks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import paddle
from paddle.autograd import PyLayer
from paddle.profiler import RecordEvent

from plsc import distributed
from plsc.distributed.device import takes_device_path, to_device, to_host
from plsc.errors import UserError
from plsc.heads.backends import HeadMemory
from plsc.heads.banks.bank import Bank, Selection
from plsc.heads.blocks import Block, plan_blocks
from plsc.heads.constants import whole
from plsc.heads.sampling import DrawAhead
from plsc.heads.spec import HeadSpec
from plsc.heads.step import HeadOutput, HeadStep


@dataclass
class ShardInfo:
    """The tensors that PLSC's `_set_info` published. They are meant for small problems.

    Attributes:
        shard_logit: this shard's logits with margin and scale, float32 [N, S].
        shard_prob: softmax probabilities for this shard's classes, normalised over all C classes, float32
            [N, S].
        shard_label: each sample's label, counted from the shard's start, or -1 if its class is in another
            shard, [N].
        shard_dim: how many classes this shard has, S.
    """

    shard_logit: paddle.Tensor
    shard_prob: paddle.Tensor
    shard_label: paddle.Tensor
    shard_dim: int


class SoftmaxHead:
    """Holds the class centres and computes the loss over them. `plsc.heads.build.make_head` makes one.

    Args:
        bank: centres for this rank's shard, or for all classes if they are not sharded. Each row holds
            `spec.sub_centres` embeddings.
        spec: margin, scale, sampling and the loss's other properties.
    """

    def __init__(self, bank: Bank, spec: HeadSpec):
        self.bank = bank
        self.spec = spec
        self.margin = spec.margin
        self.shard = bank.shard  # the classes whose centres this rank has
        self.memory = HeadMemory(bank, DrawAhead(bank.shard, spec.sample_rate, spec.seed))

    def __call__(
        self,
        emb: paddle.Tensor,
        labels: paddle.Tensor | np.ndarray,
        number: int = 0,
        *,
        counts: Sequence[int] | None = None,
    ) -> HeadOutput:
        """Compute the loss for this rank's embeddings. Every rank calls it.

        Args:
            emb: this rank's embeddings, float [B, D] or [B, D, 1, 1].
            labels: class numbers, int64. A tensor [B] holds this rank's labels. An array
                [N] holds all ranks' labels (see `gather_labels`) and saves a read from the device.
            number: training step. Together with the seed it decides which classes are sampled.
            counts: each rank's sample count. If None, the ranks exchange it, which takes a collective
                and a read from the device.

        Raises UserError if a label is not in [0, C). The message names the first such sample.
        """
        counts = distributed.gather_counts(len(emb)) if counts is None else counts
        if not isinstance(labels, np.ndarray):
            labels = gather_labels(labels.flatten().numpy(), counts)
        self.check_labels(labels)
        with RecordEvent("head"):
            step = HeadStep(self.spec, self.memory, emb.flatten(1), labels, number, counts)
            with paddle.no_grad():
                out = step.forward()
            out.loss = _SoftmaxLoss.apply(step.emb_BD, step, out)
        return out

    def check_labels(self, label_N: np.ndarray) -> None:
        """Raise UserError on every rank if a label is not in [0, C). The message names the first one."""
        outside = np.flatnonzero((label_N < 0) | (label_N >= self.shard.num_classes))
        if len(outside):
            raise UserError(
                f"sample {int(outside[0])} of the {len(label_N)} in this step has label "
                f"{int(label_N[outside[0]])}, but labels must be in [0, {self.shard.num_classes}); "
                f"{len(outside)} such samples in the step"
            )

    def update(self, lr: float, step: int = 0) -> None:
        """Apply the last backward pass's gradients to the centres that took part in it. Every rank calls
        it.

        If several backward passes ran since the last update, the head keeps only the last one's
        gradients. This drops a skipped step's gradients.

        Args:
            lr: learning rate.
            step: training step, the same as in the call.

        Raises UserError if no backward pass ran since the last update, or if the centres have changed since
        its forward pass.

        Collectives: one all_reduce SUM of two numbers if the classes are sharded and the rule needs norms
        (LARS).
        """
        selection, self.memory.ready = self.memory.ready, None
        if selection is None:
            raise UserError(
                "the head has no gradients for the class centres; call its loss's backward() before each "
                "update()"
            )
        selection.check_current()
        with RecordEvent("head"):
            selection.update(lr, step, self._norms(selection) if self.bank.rule.needs_norms else None)

    def state_dict(self) -> dict[str, Any]:
        """Return how many updates were made so far. A checkpoint stores the centres and the margin's state
        separately."""
        return {"updates": self.bank.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the update count."""
        self.bank.updates = state["updates"]

    def remember(self) -> Callable[[], None]:
        """Return a function that undoes a step which is not followed by an update. The function restores the
        margin's present statistics and drops the step's gradients."""
        return partial(self._restore, self.margin and self.margin.statistics)

    def _restore(self, statistics: Mapping | None) -> None:
        if self.margin:
            self.margin.statistics = statistics
        if self.memory.ready:
            self.memory.ready.free()
            self.memory.ready = None

    def _norms(self, selection: Selection) -> tuple[float, float] | tuple[paddle.Tensor, paddle.Tensor]:
        """Compute two norms over all ranks: the selected centres' norm and their gradient's
        norm."""
        squares = selection.squares()
        if self.spec.sharded:
            distributed.all_reduce(squares)
        norms = squares.sqrt()
        return tuple(norms.astype("float32").unbind() if takes_device_path() else norms.tolist())

    @paddle.no_grad()
    def inspect(self, emb: paddle.Tensor, label_B: paddle.Tensor) -> ShardInfo:
        """Return the loss's intermediate results as full [N, S] tensors. Use it for small problems only.
        Every rank calls it.

        Args:
            emb: this rank's embeddings, float [B, D] or [B, D, 1, 1].
            label_B: this rank's labels, int64 [B].
        """
        counts = distributed.gather_counts(len(emb))
        step = HeadStep(
            self.spec, self.memory, emb.flatten(1), gather_labels(label_B.numpy(), counts), None, counts
        )
        step.forward()
        logit_NS = step.backend.logits()
        shard = self.shard
        local_N = to_device(distributed.shard_index(step.label_N, shard.start, shard.stop))
        is_target_NS = (local_N.unsqueeze(1) == paddle.arange(shard.size)).astype("float32")
        target_N1 = self.spec.scale * step.targets.cosine.unsqueeze(1)
        logit_NS = paddle.where(is_target_NS > 0, target_N1 * is_target_NS, logit_NS)
        prob_NS = (logit_NS - step.lse_N.unsqueeze(1)).exp()
        return ShardInfo(logit_NS, prob_NS, local_N, shard.size)

    @paddle.no_grad()
    def classify(self, emb_ND: paddle.Tensor) -> paddle.Tensor:
        """Find the class with the largest logit for each embedding, without margin and sampling.

        Every rank calls it with the same embeddings. Logits stay on their rank and within the budget.

        Args:
            emb_ND: embeddings, float [N, D].

        Returns class numbers, int64 [N]. The number is C if several classes share the largest logit, because
        a tie is not a hit. It may also be C if a logit is not finite.

        Collectives: if the classes are sharded, two all_reduce MAX of N and 2 N numbers. Otherwise none.
        """
        selection = self.bank.select(None)
        block, _ = plan_blocks(
            len(emb_ND), self.shard.size, self.bank.width, self.spec.sub_centres, self.spec.budget
        )
        emb_ND = emb_ND.astype("float32")
        best_N = paddle.full([len(emb_ND)], float("-inf"))
        none_N = paddle.full([len(emb_ND)], self.shard.num_classes, dtype="int64")
        class_N = none_N
        for start in range(0, self.shard.size, block):
            stop = min(start + block, self.shard.size)
            logit_Nb, _ = Block(self.spec, selection, start, stop, "float32").logits(emb_ND)
            largest_N = logit_Nb.max(axis=1)
            is_largest_Nb = logit_Nb == largest_N.unsqueeze(1)
            is_alone_N = is_largest_Nb.astype("int32").sum(axis=1) == 1
            first_N = logit_Nb.argmax(axis=1) + whole(self.shard.start + start)
            found_N = paddle.where(is_alone_N & (largest_N != best_N), first_N, none_N)
            class_N = paddle.where(largest_N >= best_N, found_N, class_N)
            best_N = paddle.maximum(largest_N, best_N)
        if not self.spec.sharded:
            return class_N
        own_best_N = best_N.clone()
        distributed.all_reduce(best_N, "max")
        is_best_N = own_best_N == best_N
        lowest_N = paddle.where(is_best_N, class_N, none_N)
        highest_N = paddle.where(is_best_N, class_N, paddle.full_like(class_N, -1))
        negated_N, highest_N = distributed.all_reduce(paddle.stack([-lowest_N, highest_N]), "max").unbind()
        return paddle.where(highest_N == -negated_N, highest_N, none_N)


def gather_labels(label_B: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """Gather all ranks' labels into host memory. Every rank calls it. With several ranks it
    waits for the device.

    Args:
        label_B: this rank's labels, int64 [B].
        counts: each rank's sample count.

    Returns all ranks' labels in rank order, int64 [N].
    """
    if distributed.world_size() == 1:
        return label_B
    return to_host(distributed._c_allgather(to_device(label_B), counts))


class _SoftmaxLoss(PyLayer):
    """Connects `HeadStep.forward`'s loss to autograd, with `HeadStep.backward` as its backward pass."""

    @staticmethod
    def forward(ctx, emb_BD, step, out):
        ctx.step = step  # not `out`: the loss refers to ctx, and a reference back would never free either
        return out.loss

    @staticmethod
    def backward(ctx, grad):
        with RecordEvent("head"), paddle.no_grad():  # before the backbone's backward pass
            return ctx.step.backward(grad)
