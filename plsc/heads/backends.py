"""Compute the logits of a shard, their maxima and sums, and all gradients, with one of two backends.

softmax.py's docstring defines the symbols, the target logit and the other logits.

- `PaddleBackend` uses Paddle's operators. It runs on any device and with any margin.
- `KernelBackend` calls the compiled kernels in plsc/native/heads, once in the forward pass and once in the
  backward pass. It is several times faster, but runs only on a CPU. It computes in float32, or in bfloat16 if
  the processor supports it. It cannot be used with a margin that changes the other logits.

A backend object is used for one step. It keeps what the backward pass needs. The backward pass writes the
gradients with respect to the selected rows to the selection.
"""

from dataclasses import dataclass

import numpy as np
import paddle
import paddle.nn.functional as F

from plsc import native as kernels
from plsc.distributed.device import on_device, tensor_of, to_device
from plsc.heads.banks.bank import Bank, Selection
from plsc.heads.blocks import Block, TargetRows, logits_dtype, plan_blocks, rounded
from plsc.heads.constants import count_up, whole
from plsc.heads.sampling import DrawAhead
from plsc.heads.segments import ClassSums
from plsc.heads.spec import HeadSpec
from plsc.native import onednn
from plsc.native.heads import rows as row_kernels
from plsc.native.heads import softmax

LOWEST = -1e30  # replaces a logit that is excluded. It is finite, because -inf - (-inf) would be NaN.


class HeadMemory:
    """Stores the state that a head keeps from one step to the next.

    This state is the class centres, the random draw for the next step, and memory for exponentials. The
    memory is used again, because allocating new memory takes longer than computing the exponentials.

    Args:
        bank: stores the class centres.
        drawing: draws each step's sampled classes.

    Attributes:
        ready: the last backward pass's rows, with their gradients. None after their update.
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
        """Take back memory from `borrow`. If a step has no backward pass, its memory is not given back,
        and the next step gets new memory."""
        self._spare = self._spare if borrowed is None else borrowed


@dataclass(frozen=True)
class TargetPositions:
    """Tells which of the N samples have their class in this shard, and where.

    Attributes:
        sample_P: indices of the P samples whose class is in this shard, int64 [P], ordered by `column_P`.
        column_P: index of each such sample's class among the selected rows, int64 [P].
        owned_N: 1 if the sample's class is in this shard, otherwise 0, float32 [N], on the device.
    """

    sample_P: np.ndarray
    column_P: np.ndarray
    owned_N: paddle.Tensor


def takes_kernels(spec: HeadSpec, selection: Selection, inspected: bool) -> bool:
    """Return whether `KernelBackend` can compute a step of the head on this device.

    Args:
        spec: the head's properties.
        selection: the step's rows.
        inspected: whether the caller needs the logits themselves, which `KernelBackend` does not return.
    """
    return (
        kernels.multiplies()
        and (spec.compute_dtype == "float32" or onednn.has_bfloat16())
        and not on_device()
        and selection.count > 0
        and not inspected
        and spec.sub_centres == 1
        and not spec.changes_others
        and selection.host_rows("centres") is not None
    )


class KernelBackend:
    """Computes a step with compiled kernels, which read rows in host memory.

    `forward` and `backward` take and return the same as those of `PaddleBackend`.

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

    def backward(self, lse_N, dtarget_N, x_ND, factor) -> paddle.Tensor:
        dtarget_P = dtarget_N.numpy()[self._sample_P] if len(self._sample_P) else None
        grads = {name: self.selection.gradient(name) for name in self.selection.bank.names}
        grad_ND = self._softmax.backward(lse_N, dtarget_P, x_ND, grads["centres"], grads.get("bias"))
        if self.selection.bank.bias:
            grads["bias"].multiply_(factor)
        self.memory.give_back(self.exps)
        return tensor_of(grad_ND)


class PaddleBackend:
    """Computes a step with Paddle's operators, on all N samples and one block of classes at a time.

    No decision in Python depends on a value on the device. The host therefore never waits for the device,
    except if the bank stores its rows in host memory.

    In each block, the target logits are excluded. Let M_b be the maximum of a sample's remaining logits, and
    R_b the sum of exp(logit - M_b). Paddle's softmax of these logits overwrites them, to save memory. The
    largest number in it is 1 / R_b. The derivative of the loss with respect to a logit is the softmax times
    R_b exp(M_b - lse), where lse is the logarithm of the softmax denominator over all classes. The factor R_b
    exp(M_b - lse) is one number per sample. It is not multiplied with the softmax [N, b], but with the
    smaller [N, D] operands of the matrix products.

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
        selected = selection.count
        column_N = np.zeros(len(x_ND), np.int64)
        column_N[positions.sample_P] = positions.column_P
        self._targets = TargetRows(spec, selection, x_ND, to_device(column_N)) if selected else None
        self.plain_N = self._targets.plain_N if selected else paddle.zeros([len(x_ND)])
        self._positions = positions
        sizes = len(x_ND), selected, selection.bank.width, spec.sub_centres
        block, fits = plan_blocks(*sizes, spec.budget, spec.compute_dtype)
        self.spans = [(start, min(start + block, selected)) for start in range(0, selected, block)]
        keeps = fits and spec.sub_centres == 1
        self._kept: list[tuple[Block, paddle.Tensor]] | None = [] if keeps else None
        # M_b [N] and R_b [N] of each block.
        self._maxima_and_sums: list[tuple[paddle.Tensor, paddle.Tensor]] = []
        self._x_ND = rounded(scaled_ND, logits_dtype(spec, spec.compute_dtype))

    def forward(
        self, cosines: tuple[paddle.Tensor, paddle.Tensor] | None
    ) -> tuple[paddle.Tensor, paddle.Tensor, paddle.Tensor]:
        """Compute each sample's maximum and sum of exponentials over the other logits of the selected
        classes.

        Args:
            cosines: target cosines without and with margin, each float32 [N, 1]. None if the margin does not
                change the other logits.

        Returns three tensors [N]: the maximum, the maximum before the margin changes the other logits, and
        the sum of exp(logit - first result).
        """
        self._cosines = cosines
        samples = len(self._x_ND)
        if not self.spans:
            lowest_N = paddle.full([samples], LOWEST)
            return lowest_N, lowest_N, paddle.zeros([samples])
        plain = []
        for span in self.spans:
            block, logit_Nb, plain_Nb, slope_Nb, nearest_NbJ = self._logits(*span)
            # argmax and a gather need one pass over the logits. max and argmax would need two.
            largest_N2 = paddle.stack([count_up(len(logit_Nb)), logit_Nb.argmax(axis=1)], axis=1)
            max_N = paddle.gather_nd(logit_Nb, largest_N2)
            plain.append(max_N if plain_Nb is None else plain_Nb.max(axis=1))
            F.softmax_(logit_Nb, 1)
            sum_N = paddle.gather_nd(logit_Nb, largest_N2).reciprocal()
            if (overflow := block.centres.overflow) is not None:
                sum_N = sum_N + overflow
            self._maxima_and_sums.append((max_N, sum_N))
            if self._kept is not None:
                self._kept.append((block, self._weights(block, logit_Nb, slope_Nb, nearest_NbJ)))
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
        """Compute the logits of a block of classes.

        Returns five values:

        - the block
        - its scaled logits [N, b]. The target logits are near LOWEST
        - the logits before the margin or `Head.filter_above` changes them [N, b], or None if nothing changes
            them
        - the derivatives of the second value with respect to the third [N, b], or None if nothing changes
            them
        - the nearest sub-centres [N, b, J], see `Block.logits`, or None for J = 1
        """
        block = Block(self.spec, self.selection, start, stop, self.spec.compute_dtype)
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

        These target logits have no margin. The softmax denominator contains the target logit with margin
        instead, which may be much smaller.
        """
        owned_N = self._positions.owned_N
        column_N = self._targets.column_N
        if (start, stop) != (0, self.selection.count):
            owned_N = owned_N * ((whole(start) <= column_N) & (column_N < whole(stop))).astype("float32")
            column_N = (column_N - whole(start)).clip(0, stop - start - 1)
        paddle.index_put_(logit_Nb, [count_up(len(logit_Nb)), column_N], owned_N * LOWEST, True)

    def _weights(self, block: Block, softmax_Nb, slope_Nb, nearest_NbJ) -> paddle.Tensor:
        """Multiply a block's softmax by the logits' derivatives, if a margin has changed the
        logits. Return the result [N, b J], rounded for the matrix products."""
        if slope_Nb is not None:
            softmax_Nb.multiply_(slope_Nb)
        return block.round_weights(softmax_Nb, nearest_NbJ)

    def backward(
        self,
        lse_N: paddle.Tensor,
        dtarget_N: paddle.Tensor,
        x_ND: paddle.Tensor,
        factor: paddle.Tensor,
    ) -> paddle.Tensor:
        """Compute the gradient of the sum of all losses with respect to the scaled embeddings, float32 [N,
        D]. Store the gradients with respect to the selected rows in the selection.

        Args:
            lse_N: logarithm of each sample's softmax denominator, float32 [N].
            dtarget_N: derivative of each sample's loss with respect to its `plain_N` times the scale, float32
                [N]. It is 0 if the sample's class is in another shard.
            x_ND: scaled embeddings times `factor`, float32 [N, D].
            factor: gradient with respect to the mean loss, divided by N, float32 scalar. Only the gradients
                in the selection include this factor.
        """
        if not self.spans:
            return paddle.zeros_like(x_ND)
        grad_ND, by_row_ND = self._targets.gradient(dtarget_N, x_ND)
        for number, (max_N, sum_N) in enumerate(self._maxima_and_sums):
            if self._kept is None:
                block, logit_Nb, _, slope_Nb, nearest_NbJ = self._logits(*self.spans[number])
                F.softmax_(logit_Nb, 1)
                weight_Nb = self._weights(block, logit_Nb, slope_Nb, nearest_NbJ)
            else:
                block, weight_Nb = self._kept[number]
                self._kept[number] = None
            share_N1 = (sum_N * (max_N - lse_N).exp()).unsqueeze(1)
            part_ND, by_rows = block.gradient(weight_Nb, share_N1, x_ND)
            grad_ND.add_(part_ND)
            self.selection.set_gradient("centres", block.start, block.stop, by_rows)
            if self.selection.bank.bias:
                by_bias = paddle.matmul(share_N1 * factor, weight_Nb.astype("float32"), transpose_x=True)
                self.selection.set_gradient("bias", block.start, block.stop, by_bias.flatten())
        self._kept = None
        self._add_targets(by_row_ND, dtarget_N * factor if self.selection.bank.bias else None)
        return grad_ND

    def _add_targets(self, by_row_ND: paddle.Tensor, by_bias_N: paddle.Tensor | None) -> None:
        """Add the parts that come from the target logits to the gradients in the selection. Samples of the
        same class are summed first.

        Args:
            by_row_ND: gradient with respect to each sample's class row, [N, J D].
            by_bias_N: gradient with respect to the bias of each sample's class, [N], or None without bias.
        """
        positions = self._positions
        if not len(positions.sample_P):
            return
        sums = ClassSums(positions.column_P)
        sample_P = to_device(positions.sample_P)
        self.selection.add_gradient("centres", sums.class_U, sums.of(paddle.gather(by_row_ND, sample_P)))
        if by_bias_N is not None:
            by_bias_P1 = paddle.gather(by_bias_N, sample_P).unsqueeze(1)
            self.selection.add_gradient("bias", sums.class_U, sums.of(by_bias_P1).flatten())
