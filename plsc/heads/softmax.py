"""Compute softmax cross entropy over classes that are divided among the ranks, with or without a margin.

Each letter below stands for a count. The letters appear in shapes, such as [B, D], and at the end of names.
For example, `emb_BD` is a tensor with the shape [B, D].

    B  samples on this rank
    N  samples that this rank processes: all ranks' samples if the classes are sharded, otherwise its own
    W  ranks
    D  embedding size
    C  classes
    S  classes in this rank's shard (the range of classes whose centres this rank stores)
    K  classes in the shard that take part in the step (K = S without sampling)
    b  classes in a block (the classes whose logits are computed at a time)
    J  sub-centres per class (1 except for sub-centre ArcFace)
    P  samples whose class is in this rank's shard

There is one exception. In labels that the head is given, N counts all ranks' samples in any case.

A sample's target logit is the logit for its class. The logits for all other classes are called its other
logits. The head does not need all logits [N, K] at the same time. It computes one block of classes at a time.
For each sample, it computes the maximum and the sum of exponentials over the block's other logits. Let M be
the sample's largest other logit on all ranks. Let R be the sum of exp(other logit - M) over all ranks, and t
the target logit with margin. Let p be the softmax probability for the sample's class. Then

    z = M + log R - t        loss = softplus(z)        p - 1 = -sigmoid(z)

This form never subtracts nearly equal numbers. The backward pass is written by hand. It also computes one
block at a time. If all exponentials fit into the memory limit, they are kept, and a step takes 3 matrix
products. Otherwise they are computed again in the backward pass, and a step takes 4 matrix products.

If the classes are sharded over several ranks, a step calls these collectives in this order:

- all_gather of the embeddings [N, D]
- all_reduce SUM of the target cosines with and without margin [2, N], only if the margin changes the other
  logits
- all_reduce MAX of the largest other logit [2, N], with and without the change by the margin or by
  `HeadSpec.filter_above`
- all_reduce SUM of R and the target cosines with and without margin [3, N]
- in the backward pass, reduce-scatter of the gradient with respect to the embeddings [N, D]. The gradient has
  one more column if the target cosines depend on the embeddings' norms. Gloo uses an all_reduce and a slice
- in the update, all_reduce SUM of two numbers, only for LARS

The gradients with respect to the centres are then not sent. If every rank has all classes, a step calls other
collectives:

- all_gather of the embeddings' norms, only if there is a margin
- all_gather of the target cosines without margin, only if the margin changes the other logits
- all_reduce SUM of the loss and the number of hits [2]
- in the backward pass, an all_reduce SUM of the gradients with respect to the centres, and another one of
  those with respect to the biases, if there are any

In both cases, the trainer gathers all ranks' labels when the previous step ends (`Trainer._summarise_step`).
PaddlePaddle's earlier program PLSC also calls `_c_reducescatter` on the losses. This head does not need that
call, because every rank knows all N losses after the SUM of [3, N].
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
from plsc.heads.blocks import Block, Vectors, plan_blocks
from plsc.heads.constants import whole
from plsc.heads.sampling import DrawAhead
from plsc.heads.spec import HeadSpec
from plsc.heads.step import HeadOutput, HeadStep


@dataclass
class ShardInfo:
    """What `SoftmaxHead.inspect` returns. `_set_info` returned the same tensors in PaddlePaddle's earlier
    program PLSC.

    Attributes:
        shard_logit: logits for this shard's classes, with margin and scale, float32 [N, S].
        shard_prob: softmax probabilities for this shard's classes, normalised over all C classes, float32
            [N, S].
        shard_label: each sample's label minus the shard's first class, int64 [N]. It is -1 if the sample's
            class is in another shard.
        shard_dim: how many classes this shard has, S.
    """

    shard_logit: paddle.Tensor
    shard_prob: paddle.Tensor
    shard_label: paddle.Tensor
    shard_dim: int


class SoftmaxHead:
    """Stores the class centres, and computes the loss. `plsc.heads.build.make_head` returns a SoftmaxHead.

    Args:
        bank: stores the centres for this rank's shard, or for all classes if the classes are not sharded. A
            row contains a class's `spec.sub_centres` centres.
        spec: margin, scale, sampling and the loss's other properties.
    """

    def __init__(self, bank: Bank, spec: HeadSpec):
        self.bank = bank
        self.spec = spec
        self.margin = spec.margin
        self.shard = bank.shard  # the classes whose centres this rank stores
        self.memory = HeadMemory(bank, DrawAhead(bank.shard, spec.sample_rate, spec.seed))

    def __call__(
        self,
        emb: paddle.Tensor,
        labels: paddle.Tensor | np.ndarray,
        number: int | None = None,
        *,
        counts: Sequence[int] | None = None,
    ) -> HeadOutput:
        """Compute the loss for this rank's embeddings. Every rank calls it.

        Args:
            emb: this rank's embeddings, float [B, D] or [B, D, 1, 1].
            labels: class numbers, int64. A Paddle tensor [B] contains the labels of this rank. A NumPy array
                [N] contains all ranks' labels (see `gather_labels`). With an array, the host does not
                wait for the device.
            number: training step number. The seed and this number determine which classes are sampled, so it
                is required if `spec.sample_rate` is below 1.
            counts: each rank's sample count. If it is None, a collective gathers these numbers, and the host
                waits for the device.

        Raises UserError if the number is missing, if the embeddings have another size, if a rank has no
        samples, if there is not one int64 label for each embedding, or if a label is not in [0, C). In the
        last case, the message names the first sample with such a label.
        """
        if number is None and self.spec.sample_rate < 1:
            raise UserError(
                "the head draws other classes in each step, and must know the step: call "
                "head(embeddings, labels, number), with the number of the step"
            )
        emb, size = emb.flatten(1), self.bank.width // self.spec.sub_centres
        if emb.shape[1] != size:
            raise UserError(f"an embedding has {emb.shape[1]} numbers, but the head was made for {size}")
        counts = distributed.gather_counts(len(emb)) if counts is None else counts
        if 0 in counts:  # Paddle 2.6 cannot compute with empty tensors
            raise UserError(
                f"rank {counts.index(0)} has no samples in this step; give each rank at least one"
            )
        if isinstance(labels, paddle.Tensor):
            labels = gather_labels(labels.flatten().numpy(), counts)
        _check_form(labels, sum(counts))
        self.check_labels(labels)
        with RecordEvent("head"):
            step = HeadStep(self.spec, self.memory, emb, labels, number or 0, counts)
            with paddle.no_grad():
                out = step.forward()
            out.loss = _SoftmaxLoss.apply(step.emb_BD, step, out)
        return out

    def check_labels(self, label_N: np.ndarray) -> None:
        """Raise UserError if a label is not in [0, C). The message names the first sample with such a label.

        Args:
            label_N: all ranks' labels, int64 [N]. All ranks then raise the same error.
        """
        outside = np.flatnonzero((label_N < 0) | (label_N >= self.shard.num_classes))
        if len(outside):
            raise UserError(
                f"sample {int(outside[0])} of the {len(label_N)} in this step has label "
                f"{int(label_N[outside[0]])}, but labels must be in [0, {self.shard.num_classes}); "
                f"{len(outside)} such samples in the step"
            )

    def update(self, lr: float, step: int = 0) -> None:
        """Update the centres that took part in the last backward pass with their gradients. Every rank calls
        this method.

        Args:
            lr: learning rate.
            step: training step number, as passed to the forward pass.

        Raises UserError if no backward pass ran since the last update, or if the centres have changed since
        this step's forward pass.

        Collectives: one all_reduce SUM of two numbers, if the classes are sharded and the optimizer needs
        norms, as LARS does.
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
        """Return the number of updates so far, under the key "updates". The centres and the margin's state
        are not included. They are written to a checkpoint separately."""
        return {"updates": self.bank.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the number of updates."""
        self.bank.updates = state["updates"]

    def prepare_undo(self) -> Callable[[], None]:
        """Return a function for the case that the next step is skipped. The function restores the statistics
        that the margin has now, and drops the step's gradients."""
        return partial(self._restore, self.margin and self.margin.statistics)

    def clear_gradients(self) -> None:
        """Drop the last backward pass's gradients with respect to the centres, if `update` did not use
        them."""
        if self.memory.ready:
            self.memory.ready.free()
            self.memory.ready = None

    def _restore(self, statistics: Mapping | None) -> None:
        if self.margin:
            self.margin.statistics = statistics
        self.clear_gradients()

    def _norms(self, selection: Selection) -> tuple[float, float] | tuple[paddle.Tensor, paddle.Tensor]:
        """Compute two norms over all ranks: the norm of all selected centres together, and the norm of the
        gradient with respect to them."""
        squares = selection.squares()
        if self.spec.sharded:
            distributed.all_reduce(squares)
        norms = squares.sqrt()
        return tuple(norms.astype("float32").unbind() if takes_device_path() else norms.tolist())

    @paddle.no_grad()
    def inspect(self, emb: paddle.Tensor, label_B: paddle.Tensor) -> ShardInfo:
        """Return the logits and probabilities as full tensors [N, S]. Use this method for small problems
        only. Every rank calls it.

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
        prob_NS = (logit_NS - step.losses.lse_N.unsqueeze(1)).exp()
        return ShardInfo(logit_NS, prob_NS, local_N, shard.size)

    @paddle.no_grad()
    def classify(self, emb_ND: paddle.Tensor, top: int = 1) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Find the most similar classes for each embedding, without margin and sampling.

        If the head has a margin, the similarity is the cosine between the embedding and the class centre.
        Otherwise it is the logit.

        Every rank calls this method with the same embeddings. No similarities except the largest ones are
        sent to other ranks. The similarities that exist at the same time fit into the memory limit.

        Args:
            emb_ND: embeddings, float [N, D], of any length. Here N is any number.
            top: how many classes to find for each embedding, T. If there are fewer classes, all are found.

        Returns class numbers, int64 [N, T], and these classes' similarities, float32 [N, T]. The most similar
        class comes first. A number is C if another class has the same similarity, because a tie is not a hit.
        It is also C if the similarity is not finite.

        Collectives: if the classes are sharded, two all_gathers of N (T + 1) numbers from each rank.
        """
        N, C, W = len(emb_ND), self.shard.num_classes, distributed.world_size()
        T = min(top, C)
        U = T + 1  # the additional class shows whether the last one has an equal
        selection = self.bank.select(None)
        block, _ = plan_blocks(N, self.shard.size, self.bank.width, self.spec.sub_centres, self.spec.budget)
        x_ND = Vectors(emb_ND.astype("float32"), self.margin is not None).times(1.0)
        largest_NU, class_NU = paddle.full([N, U], float("-inf")), paddle.full([N, U], C, "int64")
        for start in range(0, self.shard.size, block):
            stop = min(start + block, self.shard.size)
            logit_Nb, _ = Block(self.spec, selection, start, stop, "float32").logits(x_ND)
            of_block, column = logit_Nb.topk(min(U, stop - start), axis=1)
            of_both = paddle.concat([largest_NU, of_block], axis=1)
            classes = paddle.concat([class_NU, column + whole(self.shard.start + start)], axis=1)
            largest_NU, class_NU = _largest(of_both, classes, U)
        if self.spec.sharded:
            gathered = (distributed._c_allgather(each, [N] * W) for each in (largest_NU, class_NU))
            of_all, classes = (each.reshape([W, N, U]).transpose([1, 0, 2]).flatten(1) for each in gathered)
            largest_NU, class_NU = _largest(of_all, classes, U)
        largest_NT = largest_NU[:, :T]
        equals_next_NT = largest_NT <= largest_NU[:, 1:]  # they are sorted, and `==` has a tolerance
        equals_previous_NT = paddle.concat([paddle.zeros([N, 1], "bool"), equals_next_NT[:, :-1]], axis=1)
        has_class_NT = largest_NT.isfinite() & ~(equals_next_NT | equals_previous_NT)
        return paddle.where(has_class_NT, class_NU[:, :T], paddle.full([N, T], C, "int64")), largest_NT


def _largest(
    logit_NK: paddle.Tensor, class_NK: paddle.Tensor, count: int
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Return each sample's largest logits and their classes, [N, count] each, the largest first."""
    largest, column = logit_NK.topk(count, axis=1)
    return largest, paddle.take_along_axis(class_NK, column, 1)


def gather_labels(label_B: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """Gather all ranks' labels in host memory. Every rank calls this function. If there are several
    ranks, the host waits for the device.

    Args:
        label_B: labels of this rank, int64 [B].
        counts: each rank's sample count.

    Returns all ranks' labels in the order of the ranks, int64 [N].

    Raises UserError if the labels are not int64 [B].

    Collectives: one all_gather if there are several ranks.
    """
    _check_form(label_B, counts[distributed.rank()])
    if distributed.world_size() == 1:
        return label_B
    return to_host(distributed._c_allgather(to_device(label_B), counts))


def _check_form(labels: np.ndarray, count: int) -> None:
    """Raise UserError if the labels are not an array int64 [count]."""
    if not isinstance(labels, np.ndarray):
        raise UserError(f"labels must be a Paddle tensor or a NumPy array, not a {type(labels).__name__}")
    if labels.dtype != np.int64 or labels.shape != (count,):
        raise UserError(
            f"labels must be int64 [{count}], one class number for each embedding; these are "
            f"{labels.dtype} {list(labels.shape)}"
        )


class _SoftmaxLoss(PyLayer):
    """Connects the loss from `HeadStep.forward` to autograd. `HeadStep.backward` is its backward pass."""

    @staticmethod
    def forward(ctx, emb_BD, step, out):
        # `ctx` does not store `out`, because `out` contains the loss, and the loss refers to `ctx`. If they
        # referred to each other, their memory would never be freed.
        ctx.step = step
        return out.loss

    @staticmethod
    def backward(ctx, grad):
        with RecordEvent("head"), paddle.no_grad():  # runs before the backbone's backward pass
            return ctx.step.backward(grad)
