"""Compute softmax cross entropy over classes that are sharded over the ranks, with or without a margin on the
target.

    B samples of this rank   N samples of all ranks   W ranks   D embedding size
    C classes   S classes in this rank's shard   K of them sampled for this step (all: K = S)
    b classes of a block   J sub-centres of a class (1 but for sub-centre ArcFace)
    P samples whose class is in this rank's shard

The whole [N, K] logits never exist. The shard is computed in blocks of classes, and a block yields each
sample's maximum and its sum of exponentials over the *other* logits, those that are not the sample's target.
With M the maximum over all ranks and R = sum exp(other - M), and t the target logit after the margin,

    z = M + log R - t        loss = softplus(z)        p(target) - 1 = -sigmoid(z)

which needs no difference of nearly equal numbers. Backward is written out, block by block: exponentials are
kept when they all fit into the budget (3 matrix products a step) and recomputed when not (4).

Collectives of one step: all_gather of the embeddings; all_reduce SUM of the target cosines [2, N], for a
margin that changes the other logits; all_reduce MAX of M with and without that change [2, N]; all_reduce SUM
of (R, target, t) [3, N]; in backward one reduce-scatter of the embeddings' gradient [N, D], a column more
for a margin's penalty. LARS adds an all_reduce of two numbers. The labels came with the step before
(Trainer._agree). PLSC's further `_c_reducescatter` of the losses is not needed: after the SUM
each rank knows all N of them. Centre gradients never travel.
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
from plsc.heads.sampling import DrawAhead
from plsc.heads.spec import HeadSpec
from plsc.heads.step import HeadOutput, HeadStep


@dataclass
class ShardInfo:
    """The tensors that PLSC's `_set_info` published, for small problems: this shard's logits with margin and
    scale [N, S], softmax probabilities over all C classes [N, S], labels as the shard numbers them [N] (-1:
    another shard's), and S."""

    shard_logit: paddle.Tensor
    shard_prob: paddle.Tensor
    shard_label: paddle.Tensor
    shard_dim: int


class SoftmaxHead:
    """Holds the classes' centres and computes the loss over them; see `plsc.heads.build.make_head`.

    Args:
        bank: the class centres of this rank's shard, or all of them; its rows hold `spec.sub_centres`
            embeddings each.
        spec: what is computed.
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
        """Compute the loss of this rank's embeddings, float [B, D] or [B, D, 1, 1]. Every rank calls it.

        Args:
            labels: of this rank's samples, int64 [B]; or as an array those of all ranks (see
                `gather_labels`), so that nothing is read here.
            number: of the training step; with the seed it decides which classes are sampled.
            counts: samples of each rank; None: the ranks ask each other, which takes a collective and a read.

        Raises UserError naming the first sample whose label is not in [0, C).
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
        """Raise UserError, on every rank, for the first label that is not in [0, C)."""
        outside = np.flatnonzero((label_N < 0) | (label_N >= self.shard.num_classes))
        if len(outside):
            raise UserError(
                f"sample {int(outside[0])} of the {len(label_N)} in this step has label "
                f"{int(label_N[outside[0]])}, but labels must be in [0, {self.shard.num_classes}); "
                f"{len(outside)} such samples in the step"
            )

    def update(self, lr: float, step: int = 0) -> None:
        """Update the centres that took part in the last backward pass by its gradients. Every rank calls it.

        Gradients of an earlier backward pass that no update followed are dropped, as those of a step that is
        skipped.

        Args:
            lr: the learning rate.
            step: number of the training step, as in the call.

        Raises UserError if there was no backward pass since the last update, or if the centres have changed
        since its forward pass.

        Collectives: one all_reduce SUM of two numbers if the classes are spread and the rule needs norms
        (LARS).
        """
        selection, self.memory.ready = self.memory.ready, None
        if selection is None:
            raise UserError(
                "the head has no gradients to update the class centres by; call backward() of its loss "
                "before each update()"
            )
        selection.check_current()
        with RecordEvent("head"):
            selection.update(lr, step, self._norms(selection) if self.bank.rule.needs_norms else None)

    def state_dict(self) -> dict[str, Any]:
        """Return how often the centres were updated; their rows and the margin's state are written apart."""
        return {"updates": self.bank.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting updates."""
        self.bank.updates = state["updates"]

    def remember(self) -> Callable[[], None]:
        """Return a call that takes a step back which is not to be updated: it restores the margin's
        statistics as they are now, and drops the gradients."""
        return partial(self._restore, self.margin and self.margin.statistics)

    def _restore(self, statistics: Mapping | None) -> None:
        if self.margin:
            self.margin.statistics = statistics
        if self.memory.ready:
            self.memory.ready.free()
            self.memory.ready = None

    def _norms(self, selection: Selection) -> tuple[float, float] | tuple[paddle.Tensor, paddle.Tensor]:
        """Compute the norms of the selected centres of all ranks and of their gradient."""
        squares = selection.squares()
        if self.spec.sharded:
            distributed.all_reduce(squares)
        norms = squares.sqrt()
        return tuple(norms.astype("float32").unbind() if takes_device_path() else norms.tolist())

    @paddle.no_grad()
    def inspect(self, emb: paddle.Tensor, label_B: paddle.Tensor) -> ShardInfo:
        """Return the parts of the loss as whole [N, S] tensors. Small problems only. Every rank calls it."""
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
        """Find the class whose logit, without margin and sampling, is larger than all others of each
        embedding; C where several are the largest, since a tie is not a hit. int64 [N].

        Every rank calls it with the same embeddings, float [N, D]. Logits stay on their rank and within the
        budget. Collectives: two all_reduce MAX of N and 2 N numbers if the classes are spread, none if not. A
        logit that is not finite may give C.
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
            first_N = logit_Nb.argmax(axis=1) + (self.shard.start + start)
            found_N = paddle.where(is_alone_N & (largest_N != best_N), first_N, none_N)
            class_N = paddle.where(largest_N >= best_N, found_N, class_N)
            best_N = paddle.maximum(largest_N, best_N)
        if not self.spec.sharded:
            return class_N
        of_rank_N = best_N.clone()
        distributed.all_reduce(best_N, "max")
        is_best_N = of_rank_N == best_N
        lowest_N = paddle.where(is_best_N, class_N, none_N)
        highest_N = paddle.where(is_best_N, class_N, paddle.full_like(class_N, -1))
        negated_N, highest_N = distributed.all_reduce(paddle.stack([-lowest_N, highest_N]), "max").unbind()
        return paddle.where(highest_N == -negated_N, highest_N, none_N)


def gather_labels(label_B: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """Gather the labels of all ranks' samples into the host's memory. Every rank calls it; with several ranks
    it waits for the device."""
    if distributed.world_size() == 1:
        return label_B
    return to_host(distributed._c_allgather(to_device(label_B), counts))


class _SoftmaxLoss(PyLayer):
    """Puts the loss of `HeadStep.forward` into autograd, with `HeadStep.backward` as its backward pass."""

    @staticmethod
    def forward(ctx, emb_BD, step, out):
        ctx.step = step  # not `out`: the loss refers to ctx, and a reference back would keep both for ever
        return out.loss

    @staticmethod
    def backward(ctx, grad):
        with RecordEvent("head"), paddle.no_grad():  # before the backbone's backward pass
            return ctx.step.backward(grad)
