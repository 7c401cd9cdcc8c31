"""Compute a shard's logits, their maxima and sums, and all gradients, by one of two backends.

softmax.py's docstring defines the letters in shapes and names, the target logit and the other logits. If the
classes are not sharded, N is how many samples this rank has.

- `PaddleBackend` uses Paddle's operators. It runs on any device and with any margin.
- `KernelBackend` calls the compiled kernels in plsc/native/heads, once in the forward pass and once in the
  backward pass. It is several times faster, but runs only on a CPU. It computes in float32, or in bfloat16 if
  the processor supports it. `takes_kernels` lists the heads that cannot use it.

A backend object is used for one step. It keeps what the backward pass needs. The backward pass stores the
gradients with respect to the selected rows in the step's `Selection`.
"""

from dataclasses import dataclass

import numpy as np
import paddle
import paddle.nn.functional as F

from plsc import native as kernels
from plsc.distributed import world_size
from plsc.distributed.device import on_device, tensor_of, to_device
from plsc.distributed.paddle_internals import take_in_rows
from plsc.heads.banks.bank import Bank, Selection
from plsc.heads.blocks import Block, TargetRows, Vectors, logits_dtype, plan_blocks, rounded
from plsc.heads.constants import count_up, filled, whole
from plsc.heads.sampling import DrawAhead
from plsc.heads.segments import ClassSums
from plsc.heads.spec import HeadSpec
from plsc.native import onednn
from plsc.native.heads import rows as row_kernels
from plsc.native.heads import softmax

_LEAST_SHARE = 46.0  # -log(1e-20)
LOWEST = -1e30  # is added to a logit to exclude it. It is finite, because -inf - (-inf) would be NaN.


class HeadMemory:
    """Stores the state that a head keeps from one step to the next.

    The state consists of the class centres, the random draw for the next step, and memory for exponentials.
    The memory is used again, because allocating new memory takes longer than computing the exponentials.

    Args:
        bank: stores the class centres.
        drawing: draws each step's sampled classes.

    Attributes:
        ready: the last backward pass's rows, with their gradients. None if there was no backward pass since
            the last update.
    """

    def __init__(self, bank: Bank, drawing: DrawAhead):
        self.bank = bank
        self.drawing = drawing
        self.ready: Selection | None = None
        self._spare: np.ndarray | None = None

    def borrow(self, numbers: int, dtype: np.dtype) -> np.ndarray:
        """Return memory for at least `numbers` elements. The caller owns this memory until `give_back`."""
        memory = self._spare
        self._spare = None
        if memory is None or len(memory) < numbers:
            memory = np.empty(numbers + numbers // 16, dtype)  # memory that is never written takes no space
        return memory

    def give_back(self, borrowed: np.ndarray | None) -> None:
        """Take back memory from `borrow`. A step without a backward pass does not give its memory back, so
        the next step gets new memory."""
        self._spare = self._spare if borrowed is None else borrowed


@dataclass(frozen=True)
class TargetPositions:
    """Tells which of the N samples have their class in this shard, and in which selected row.

    Attributes:
        sample_P: indices of the P samples whose class is in this shard, int64 [P], ordered by `column_P`.
        column_P: index of each such sample's class among the selected rows, int64 [P].
        owned_N: 1 if the sample's class is in this shard, otherwise 0, float32 [N], on the device. None if
            all N samples' classes are in this shard.
    """

    sample_P: np.ndarray
    column_P: np.ndarray
    owned_N: paddle.Tensor | None


@dataclass(frozen=True)
class Losses:
    """What all ranks know about the N samples after the forward pass. All tensors are float32 [N].

    Attributes:
        other_N: logarithm of the sum of exp(other logit) over all ranks.
        target_N: the target logits, with margin and scale.
        loss_N: the losses, without the margin's penalty.
        rest_N: 1 - p, where p is the softmax probability for the sample's class.
    """

    other_N: paddle.Tensor
    target_N: paddle.Tensor
    loss_N: paddle.Tensor
    rest_N: paddle.Tensor

    @property
    def lse_N(self) -> paddle.Tensor:
        """The logarithm of each sample's softmax denominator."""
        return self.target_N + self.loss_N


def takes_kernels(spec: HeadSpec, selection: Selection, inspected: bool) -> bool:
    """Return whether `KernelBackend` can compute a step of the head. The result is the same on every rank.
    A rank without rows then uses `PaddleBackend` all the same.

    Args:
        spec: the head's properties.
        selection: the step's rows.
        inspected: whether the caller needs the logits themselves. `KernelBackend` does not return them.
    """
    return (
        kernels.multiplies()
        and (spec.compute_dtype == "float32" or onednn.has_bfloat16())
        and not on_device()
        and not inspected
        and spec.sub_centres == 1
        and not spec.changes_others
        and selection.host_rows("centres") is not None
    )


class KernelBackend:
    """Computes a step with compiled kernels, which read rows in host memory.

    `forward` and `backward` have the same arguments and results as in `PaddleBackend`, with one exception.
    The gradient with respect to the embeddings does not include the argument `factor`. `HeadStep` multiplies
    this gradient by the factor after the sum over the ranks.

    Args:
        spec: the head's properties.
        memory: the head's state.
        selection: the step's rows.
        x_ND: embeddings, normalised if there is a margin, float32 [N, D].
        scaled_ND: `x_ND` times the head's scale, float32 [N, D].
        positions: where the samples' classes are.

    Attributes:
        plain_N: target cosines without margin, or target logits if there is no margin, float32 [N]. They are
            0 if the sample's class is in another shard.
    """

    def __init__(
        self,
        spec: HeadSpec,
        memory: HeadMemory,
        selection: Selection,
        x_ND: paddle.Tensor,
        scaled_ND: paddle.Tensor,
        positions: TargetPositions,
    ):
        self.spec = spec
        self.selection = selection
        self.memory = memory
        self._sample_P = sample_P = positions.sample_P
        cosine = spec.margin is not None
        rows_SD, index_K = selection.host_rows("centres")
        bias_S = selection.host_rows("bias")[0] if selection.bank.bias else None
        row_P = positions.column_P if index_K is None else index_K[positions.column_P]
        plain_N = np.zeros(len(x_ND), np.float32)
        plain_N[sample_P] = row_kernels.pair_products(x_ND, sample_P, rows_SD, row_P, cosine)
        if selection.bank.bias:
            plain_N[sample_P] += selection.gather("bias", tensor_of(positions.column_P)).numpy()
        self.plain_N = tensor_of(plain_N)
        numbers = len(x_ND) * selection.count
        bfloat16 = spec.compute_dtype == "bfloat16"
        dtype = softmax.kept_dtype(bfloat16)
        fits = dtype.itemsize * numbers <= spec.budget
        self.exps = memory.borrow(numbers, dtype) if fits else None
        exps_KN = None if self.exps is None else self.exps[:numbers].reshape(selection.count, -1)
        arrays = scaled_ND, rows_SD, bias_S, index_K, positions.column_P, sample_P, exps_KN
        self._softmax = softmax.Softmax(*arrays, cosine=cosine, bfloat16=bfloat16)

    def forward(self, cosines: None) -> tuple[paddle.Tensor, paddle.Tensor, paddle.Tensor]:
        max_bN, sum_bN = self._softmax.forward()
        max_N = max_bN.max(axis=0)
        sum_N = tensor_of((sum_bN * np.exp(max_bN - max_N)).sum(axis=0))
        max_N = tensor_of(max_N)
        return max_N, max_N, sum_N

    def backward(self, losses: Losses, slope_N, scaled_ND, factor) -> paddle.Tensor:
        dtarget_N = -losses.rest_N * slope_N
        dtarget_P = dtarget_N.numpy()[self._sample_P] if len(self._sample_P) else None
        grads = {name: self.selection.gradient(name) for name in self.selection.bank.names}
        grad_ND = self._softmax.backward(
            losses.lse_N, dtarget_P, scaled_ND * factor, grads["centres"], grads.get("bias")
        )
        if self.selection.bank.bias:
            grads["bias"].multiply_(factor)
        self.memory.give_back(self.exps)
        return tensor_of(grad_ND)


class PaddleBackend:
    """Computes a step with Paddle's operators, on all N samples and one block of classes at a time.

    No decision in Python depends on a value on the device. The host therefore never waits for the device,
    except if the bank stores its rows in host memory or on the disk.

    In each block, the target logits are excluded. Paddle's softmax overwrites the block's logits with its
    result, to save memory. Let rest be 1 - p, where p is the probability for the sample's class. Let q be the
    share of rest that belongs to the block's classes. The derivative of the loss with respect to one of the
    other logits is the softmax times rest q. The derivative with respect to the target logit before the
    margin is -rest times the margin's slope. Therefore -slope / q is written into the softmax at the target.
    The factor rest q is one number per sample. It is multiplied with operands and results [N, D] of the
    matrix products, because the softmax [N, b] is larger. If one block has all classes, q is 1.

    With sub-centres, or if the other logits are changed, `TargetRows` computes the target logits' gradients.

    Args:
        spec: the head's properties.
        memory: the head's state. This backend does not use it.
        selection: the step's rows.
        x_ND: embeddings, normalised if there is a margin, float32 [N, D].
        scaled_ND: `x_ND` times the head's scale, float32 [N, D].
        positions: where the samples' classes are.

    Attributes:
        plain_N: target cosines without margin, or target logits if there is no margin, float32 [N]. They are
            arbitrary if the sample's class is in another shard.
    """

    def __init__(
        self,
        spec: HeadSpec,
        memory: HeadMemory,
        selection: Selection,
        x_ND: paddle.Tensor,
        scaled_ND: paddle.Tensor,
        positions: TargetPositions,
    ):
        self.spec = spec
        self.selection = selection
        self._is_alone = not spec.sharded or world_size() == 1
        self._positions = positions
        selected = selection.count
        column_N = np.zeros(len(x_ND), np.int64)
        column_N[positions.sample_P] = positions.column_P
        self._column_N = to_device(column_N)
        sizes = len(x_ND), selected, selection.bank.width, spec.sub_centres
        block, fits = plan_blocks(*sizes, spec.budget, spec.compute_dtype)
        self.spans = [(start, min(start + block, selected)) for start in range(0, selected, block)]
        self._targets = self._first = None
        if not selected:
            self.plain_N = paddle.zeros([len(x_ND)])
        elif spec.targets_apart:
            self._targets = TargetRows(spec, selection, x_ND, self._column_N)
            self.plain_N = self._targets.plain_N
        else:
            self._first = self._block(0, selected) if len(self.spans) == 1 else None
            self.plain_N = self._compare_targets(x_ND)
        keeps = fits and spec.sub_centres == 1
        self._kept: list[tuple[Block, paddle.Tensor]] | None = [] if keeps else None
        # For each block: the maximum [N], and the sum of exponentials [N], over the other logits.
        self._maxima_and_sums: list[tuple[paddle.Tensor, paddle.Tensor]] = []
        self._x_ND = rounded(scaled_ND, logits_dtype(spec, spec.compute_dtype))

    def _block(self, start: int, stop: int) -> Block:
        return Block(self.spec, self.selection, start, stop, self.spec.compute_dtype)

    def _compare_targets(self, x_ND: paddle.Tensor) -> paddle.Tensor:
        """Compute each sample's similarity with its own class, float32 [N]."""
        if self._first:  # the block has normalised these rows already
            rows_ND = paddle.gather(self._first.centres.values, self._column_N)
        else:
            rows_ND = self.selection.gather("centres", self._column_N)
            rows_ND = Vectors(rows_ND, self.spec.margin is not None).values
        plain_N = (rows_ND * x_ND).sum(axis=1)
        if self.selection.bank.bias:
            plain_N = plain_N + self.selection.gather("bias", self._column_N)
        return plain_N

    def forward(
        self, cosines: tuple[paddle.Tensor, paddle.Tensor] | None
    ) -> tuple[paddle.Tensor, paddle.Tensor, paddle.Tensor]:
        """Compute each sample's maximum and sum of exponentials over the other logits of the selected
        classes.

        Args:
            cosines: target cosines without and with margin, each float32 [N, 1]. None if the margin does not
                change the other logits.

        Returns three tensors [N]: the maximum, the maximum before the margin or `HeadSpec.filter_above`
        changes the other logits, and the sum of exp(other logit - first result).
        """
        self._cosines = cosines
        samples = len(self._x_ND)
        if not self.spans:
            lowest_N = paddle.full([samples], LOWEST)
            return lowest_N, lowest_N, paddle.zeros([samples])
        plain = []
        for span in self.spans:
            block, logit_Nb, plain_Nb, slope_Nb, _ = self._logits(*span)
            # argmax and a gather need one pass over the logits. max and argmax would need two.
            largest_N1 = logit_Nb.argmax(axis=1, keepdim=True)
            max_N = take_in_rows(logit_Nb, largest_N1).flatten()
            plain.append(max_N if plain_Nb is None else plain_Nb.max(axis=1))
            F.softmax_(logit_Nb, 1)
            most_N = take_in_rows(logit_Nb, largest_N1).flatten()
            one = block.centres.one_or_nan
            sum_N = most_N.reciprocal() if one is None else one / most_N
            self._maxima_and_sums.append((max_N, sum_N))
            if slope_Nb is not None:
                logit_Nb.multiply_(slope_Nb)
            if self._kept is not None:
                self._kept.append((block, logit_Nb))
        if len(self.spans) == 1:
            ((max_N, sum_N),) = self._maxima_and_sums
            return max_N, plain[0], sum_N
        maxima_bN, sums_bN = (paddle.stack(each) for each in zip(*self._maxima_and_sums))
        max_N = maxima_bN.max(axis=0)
        sum_N = (sums_bN * (maxima_bN - max_N).exp()).sum(axis=0)
        return max_N, paddle.stack(plain).max(axis=0), sum_N

    def logits(self) -> paddle.Tensor:
        """Compute the scaled logits of all classes, [N, S]. The target logits are near LOWEST. Use this
        method for small problems only."""
        return self._logits(0, self.selection.count)[1]

    def _logits(self, start: int, stop: int) -> tuple:
        """Compute the logits for the selected rows [start, stop).

        Returns five results:

        - the rows' block
        - its logits [N, b]. The target logits are near LOWEST
        - the logits before the margin or `HeadSpec.filter_above` changes them [N, b], or None if nothing
            changes them
        - the derivatives of the second result with respect to the third [N, b], or None if nothing changes
            the logits
        - the nearest sub-centres [N, b, J], see `Block.logits`, or None if there are no sub-centres
        """
        block, self._first = self._first or self._block(start, stop), None
        logit_Nb, nearest_NbJ = block.logits(self._x_ND)
        self._exclude_targets(logit_Nb, start, stop)
        if not self.spec.changes_others:
            return block, logit_Nb, None, None, nearest_NbJ
        plain_Nb = changed_Nb = logit_Nb / self.spec.scale
        slope_Nb = None
        if self.spec.margin.others:
            changed_Nb, slope_Nb = self.spec.margin.others(plain_Nb, *self._cosines)
        if self.spec.filter_above is not None:
            stays_Nb = (plain_Nb <= self.spec.filter_above).astype("float32")
            changed_Nb = changed_Nb * stays_Nb
            slope_Nb = stays_Nb if slope_Nb is None else slope_Nb * stays_Nb
        return block, changed_Nb * self.spec.scale, logit_Nb, slope_Nb, nearest_NbJ

    def _exclude_targets(self, logit_Nb: paddle.Tensor, start: int, stop: int) -> None:
        """Add LOWEST to the target logits in a block, in place. This excludes them from the maximum and
        the sum.

        The target logits in the block have no margin. The loss needs the target logit with margin instead,
        which may be much smaller.
        """
        self._add_at_targets(logit_Nb, filled([len(logit_Nb)], LOWEST), start, stop)

    def _add_at_targets(
        self, matrix_Nb: paddle.Tensor, number_N: paddle.Tensor, start: int, stop: int
    ) -> None:
        """Add each sample's number to the column of its class in a block's matrix, in place. If the class is
        outside the block, add 0."""
        column_N = self._column_N
        if self._positions.owned_N is not None:
            number_N = number_N * self._positions.owned_N
        if (start, stop) != (0, self.selection.count):
            number_N = number_N * ((whole(start) <= column_N) & (column_N < whole(stop))).astype("float32")
            column_N = (column_N - whole(start)).clip(0, stop - start - 1)
        paddle.index_put_(matrix_Nb, [count_up(len(matrix_Nb)), column_N], number_N, True)

    def backward(
        self, losses: Losses, slope_N: paddle.Tensor, scaled_ND: paddle.Tensor, factor: paddle.Tensor
    ) -> paddle.Tensor:
        """Compute the gradient with respect to the scaled embeddings, float32 [N, D]. The gradients with
        respect to the selected rows are stored in the selection.

        Args:
            losses: result of the forward pass.
            slope_N: derivatives of the target cosines with margin, float32 [N]. They are 0 if the sample's
                class is in another shard.
            scaled_ND: scaled embeddings, float32 [N, D].
            factor: gradient with respect to the mean loss, divided by all ranks' sample count, float32
                scalar. The gradients in the selection include it. The result includes it unless
                `spec.targets_apart`.
        """
        if not self.spans:
            return paddle.zeros_like(scaled_ND)
        if self._targets:
            scaled_ND = scaled_ND * factor
            lse_N = losses.lse_N
            grad_ND, by_row_ND = self._targets.gradient(-losses.rest_N * slope_N, scaled_ND)
        else:
            rest_N, target_N = losses.rest_N * factor, -slope_N
            grad_ND = None
        for number, (start, stop) in enumerate(self.spans):
            if self._kept is None:
                block, weight_Nb, _, slope_Nb, nearest_NbJ = self._logits(start, stop)
                F.softmax_(weight_Nb, 1)
                if slope_Nb is not None:
                    weight_Nb.multiply_(slope_Nb)
            else:
                (block, weight_Nb), nearest_NbJ = self._kept[number], None
                self._kept[number] = None
            if self._targets:
                max_N, sum_N = self._maxima_and_sums[number]
                share_N = sum_N * (max_N - lse_N).exp()
            else:
                share_N, own_N = self._share(number, losses.other_N, rest_N, target_N)
                self._add_at_targets(weight_Nb, own_N, start, stop)
            weight_Nb = block.round_weights(weight_Nb, nearest_NbJ)
            part_ND, by_rows = block.gradient(weight_Nb, share_N.unsqueeze(1), scaled_ND)
            grad_ND = part_ND if grad_ND is None else grad_ND.add_(part_ND)
            self.selection.set_gradient("centres", start, stop, by_rows)
            if self.selection.bank.bias:
                by_bias = paddle.matmul(share_N.unsqueeze(0), weight_Nb.astype("float32"))
                self.selection.set_gradient("bias", start, stop, by_bias.flatten())
        self._kept = None
        if self._targets:
            self._add_targets(by_row_ND)
        return grad_ND

    def _add_targets(self, by_row_ND: paddle.Tensor) -> None:
        """Add the target logits' contributions to the gradients in the selection. Contributions by samples
        with the same class are summed first.

        Args:
            by_row_ND: each sample's gradient with respect to the row of its class, [N, J D].
        """
        positions = self._positions
        if len(positions.sample_P):
            sums = ClassSums(positions.column_P)
            by_row_PD = paddle.gather(by_row_ND, to_device(positions.sample_P))
            self.selection.add_gradient("centres", sums.class_U, sums.of(by_row_PD))

    def _share(self, number: int, other_N, rest_N, target_N) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Return a block's rest q and -slope / q, each [N]. The class's docstring defines these symbols.

        If q is below 1e-20, 1e-20 is used instead. The error is far below the rounding errors.
        """
        if self._is_alone and len(self.spans) == 1:
            return rest_N, target_N
        max_N, sum_N = self._maxima_and_sums[number]
        less_N = (other_N - (max_N + sum_N.log())).clip(max=_LEAST_SHARE)
        return rest_N * (-less_N).exp(), target_N * less_N.exp()
