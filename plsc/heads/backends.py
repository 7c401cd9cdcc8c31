"""Compute a shard's logits, their maxima and sums, and all gradients. Two backends do the same work.
softmax.py defines the symbols.

`PaddleBackend` uses Paddle's ops. It runs on any device and with any margin. `KernelBackend` calls
plsc/native/heads twice on a CPU, and is several times faster. It computes in float32, or in bfloat16 if the
processor supports it, and needs a margin that does not change the other logits.

A backend serves one step. It keeps what the backward pass needs, and writes the row gradients to the
selection.
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

LOWEST = -1e30  # means "no other logit". It is finite, so that differences are not NaN.


class HeadMemory:
    """Keeps a head's state between steps: centres, classes drawn ahead, and memory for exponentials.
    This memory is reused, because fresh pages cost more time than the work on them.

    Args:
        bank: class centres.
        drawing: draws each step's sampled classes.

    Attributes:
        ready: the last backward pass's rows, which wait for their update, or None after the update.
    """

    def __init__(self, bank: Bank, drawing: DrawAhead):
        self.bank = bank
        self.drawing = drawing
        self.ready: Selection | None = None
        self._spare: np.ndarray | None = None

    def borrow(self, numbers: int, dtype: np.dtype) -> np.ndarray:
        """Lend memory for at least this many numbers."""
        memory = self._spare
        self._spare = None
        if memory is None or len(memory) < numbers:
            memory = np.empty(numbers + numbers // 16, dtype)  # untouched pages cost nothing
        return memory

    def give_back(self, borrowed: np.ndarray | None) -> None:
        """Take memory back. A step without a backward pass never returns its memory, and the next step gets
        new memory."""
        self._spare = self._spare if borrowed is None else borrowed


@dataclass(frozen=True)
class TargetPositions:
    """Positions of the N samples' classes in this shard.

    Attributes:
        sample_P: indices of the samples whose class is in this shard, ordered by class, int64 [P].
        column_P: each such sample's class, as an index among the selected rows, int64 [P].
        owned_N: 1 if the sample's class is in this shard, otherwise 0, float32 [N], on the device.
    """

    sample_P: np.ndarray
    column_P: np.ndarray
    owned_N: paddle.Tensor


def takes_kernels(spec: HeadSpec, selection: Selection, inspected: bool) -> bool:
    """Return whether `KernelBackend` can compute a head's step with these rows on this device.

    Args:
        spec: the head's properties.
        selection: the step's rows.
        inspected: whether the caller needs the logits themselves.
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
    """Runs compiled kernels on rows in host memory.

    Args:
        spec: the head's properties.
        memory: the head's state.
        selection: the step's rows.
        x_ND: samples, float32 [N, D].
        scaled_ND: samples times the head's scale, float32 [N, D].
        positions: where the samples' classes are.

    Attributes:
        plain_N: the samples' similarities with their own classes, float32 [N], or 0 if the class is in
            another shard.
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
    """Runs Paddle's ops on all N samples, one class block at a time. No operation depends on a value.
    The host therefore never waits for the device, except with a bank in host memory.

    A block's softmax excludes the samples' own classes, and overwrites the logits. Let M_b be
    the block's maximum, and R_b the sum of exp(logit - M_b). The gradient with respect to a logit is then
    the softmax times R_b exp(M_b - lse). This factor is one number per sample, and is applied to the [N, D]
    operands of the products. 1 / R_b is the softmax's largest number.

    Args:
        spec: the head's properties.
        memory: the head's state.
        selection: the step's rows.
        x_ND: samples, float32 [N, D].
        scaled_ND: samples times the head's scale, float32 [N, D].
        positions: where the samples' classes are.

    Attributes:
        plain_N: the samples' similarities with their own classes, float32 [N], arbitrary if the class is in
            another shard.
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
        # Each block's maximum and sum, [N].
        self._maxima_and_sums: list[tuple[paddle.Tensor, paddle.Tensor]] = []
        self._x_ND = rounded(scaled_ND, logits_dtype(spec, spec.compute_dtype))

    def forward(
        self, cosines: tuple[paddle.Tensor, paddle.Tensor] | None
    ) -> tuple[paddle.Tensor, paddle.Tensor, paddle.Tensor]:
        """Compute maxima and sums over the shard's selected logits, except each sample's target.

        Args:
            cosines: target cosines without and with margin, each float32 [N, 1], for a margin that changes
                the other logits. Otherwise None.

        Returns three tensors [N]: the maximum, the maximum before the logits are changed, and the sum of
        exp(logit - maximum).
        """
        self._cosines = cosines
        samples = len(self._x_ND)
        if not self.spans:
            lowest_N = paddle.full([samples], LOWEST)
            return lowest_N, lowest_N, paddle.zeros([samples])
        plain = []
        for span in self.spans:
            block, logit_Nb, plain_Nb, slope_Nb, nearest_NbJ = self._logits(*span)
            # argmax gives the maximum and its position, and saves a pass over the logits.
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
        """Compute the scaled logits [N, S] of all classes, with the targets near LOWEST. Use it for small
        problems only."""
        return self._logits(0, self.selection.count)[1]

    def _logits(self, start: int, stop: int) -> tuple:
        """Compute a block's logits.

        Returns five values: the block, its scaled logits [N, b] with the targets near LOWEST, the logits
        before they are changed [N, b], the change's slopes [N, b], and the nearest sub-centres
        [N, b, J]. The third and fourth are None if nothing changes the logits. The last is None for J = 1.
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
        """Add LOWEST to the logits of the samples' own classes, in place. This excludes them from the sum,
        because they may exceed the normaliser that holds the target with margin."""
        owned_N = self._positions.owned_N
        column_N = self._targets.column_N
        if (start, stop) != (0, self.selection.count):
            owned_N = owned_N * ((whole(start) <= column_N) & (column_N < whole(stop))).astype("float32")
            column_N = (column_N - whole(start)).clip(0, stop - start - 1)
        paddle.index_put_(logit_Nb, [count_up(len(logit_Nb)), column_N], owned_N * LOWEST, True)

    def _weights(self, block: Block, softmax_Nb, slope_Nb, nearest_NbJ) -> paddle.Tensor:
        """Multiply a block's softmax, which is 0 at the targets, by the slopes with which its logits change.
        The result [N, b J] is rounded for the products."""
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
        """Compute the summed losses' gradient with respect to the scaled embeddings, float32 [N, D].
        Store the row gradients in the selection.

        Args:
            lse_N: logarithm of each sample's softmax denominator, float32 [N].
            dtarget_N: gradient with respect to the target logits, float32 [N], or 0 if the target is in
                another shard.
            x_ND: scaled embeddings times `factor`, float32 [N, D].
            factor: the mean loss's gradient divided by N, float32 scalar.
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
        """Add the samples' contributions to their own classes' gradients, one sum per class."""
        positions = self._positions
        if not len(positions.sample_P):
            return
        sums = ClassSums(positions.column_P)
        sample_P = to_device(positions.sample_P)
        self.selection.add_gradient("centres", sums.class_U, sums.of(paddle.gather(by_row_ND, sample_P)))
        if by_bias_N is not None:
            by_bias_P1 = paddle.gather(by_bias_N, sample_P).unsqueeze(1)
            self.selection.add_gradient("bias", sums.class_U, sums.of(by_bias_P1).flatten())
