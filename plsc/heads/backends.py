"""Compute a shard's logits, their maxima and sums, and all gradients, by one of two equivalent backends.

    N samples   D embedding size   K classes of the step, b of them in a block   J sub-centres   P targets in this shard

`PaddleBackend` uses Paddle's ops, on any device and with any margin. `KernelBackend` does the same on CPUs in
two calls of plsc/heads/kernels, several times faster, where the margin does not change the other logits, in
float32, and in bfloat16 where the processor has it. A backend is made for one step: it keeps what the backward
pass needs, and writes the gradients of the rows to the bank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import paddle

from plsc import distributed
from plsc.heads.blocks import plan_blocks
from plsc.heads.kernels import softmax
from plsc.utils import kernels
from plsc.utils.tensors import tensor_of

LOWEST = -1e30  # stands for "no other logit": finite, so that differences with it are not NaN


@dataclass(frozen=True)
class BackendInput:
    """The inputs of a backend for one step.

    scaled_ND: the samples times the head's scale. row_P: those whose class is in the shard; rows: the same as
    a tensor; column_P: their classes, rising, as the bank's selected rows are counted. cosines: of each
    sample with its class, without and with margin [N, 1], for a margin that changes the other logits.
    inspected: whether the caller wants the logits themselves. bounds: int64 [2, N], first and last + 1 of the selected
    classes in the range of a sample's class; None: all. most: the samples that blocks are planned for, the same on
    every rank where the ranks add up the gradients of each block.
    """

    scaled_ND: paddle.Tensor
    row_P: np.ndarray
    column_P: np.ndarray
    rows: paddle.Tensor
    cosines: tuple[paddle.Tensor, paddle.Tensor] | None
    most: int
    inspected: bool = False
    bounds: np.ndarray | None = None


def choose_backend(head, given: BackendInput, keep: bool | None) -> PaddleBackend | KernelBackend:
    """Make the fastest backend for this step.

    Args:
        head: the SoftmaxHead, with its bank, its margin and its settings.
        keep: whether exponentials are kept for backward; None: if they fit into the budget.
    """
    able = (
        by_kernels(head.compute_dtype)
        and given.scaled_ND.place.is_cpu_place()
        and head.bank.selected > 0
        and not given.inspected
        and head.sub_centres == 1
        and not (head.margin and head.margin.has_others)
        and head.bank.host_rows("centres") is not None
    )
    return (KernelBackend if able else PaddleBackend)(head, given, keep)


def by_kernels(dtype: str) -> bool:
    """Say whether kernels of this process multiply numbers of this dtype: float32, and bfloat16 where the
    processor has it."""
    return kernels.has_bfloat16() if dtype == "bfloat16" else dtype == "float32" and kernels.multiplies()


def multiplies_slowly(dtype: str, margin, sub_centres: int) -> bool:
    """Say whether products of this dtype take longer here than float32's: on a CPU without kernels for them,
    where Paddle's ops round the numbers and then multiply in float32."""
    if dtype == "float32" or not paddle.get_device().startswith("cpu"):
        return False
    known = sub_centres == 1 and not (margin and margin.has_others)
    return not (known and by_kernels(dtype))


class _Part(NamedTuple):
    """The samples of one range of classes, with the selected classes [start, stop) of this shard in it.

    sample_n: which of the N samples, int64; None: all. targets: which of the P targets are theirs.
    """

    sample_n: np.ndarray | None
    start: int
    stop: int
    targets: slice
    softmax: softmax.Softmax


class KernelBackend:
    """Runs compiled kernels on the bank's own memory. Where classes lie in ranges, each range is computed for its own
    samples only."""

    def __init__(self, head, given: BackendInput, keep: bool | None):
        self.head = head
        self.bank = head.bank
        self.given = given
        spans = list(_spans(given.bounds, len(given.scaled_ND), self.bank.selected))
        numbers = sum(samples * (stop - start) for _, samples, start, stop in spans)
        fits = 4 * numbers <= head.budget
        self.exps = head.workspace.take(numbers) if (fits if keep is None else keep) else None
        self.parts = []
        used = 0
        for sample_n, samples, start, stop in spans:
            exps_KN = None
            if self.exps is not None:
                exps_KN = self.exps[used : used + samples * (stop - start)].reshape(stop - start, samples)
            used += samples * (stop - start)
            self.parts.append(self._part(sample_n, start, stop, exps_KN))

    def _part(self, sample_n: np.ndarray | None, start: int, stop: int, exps_KN: np.ndarray | None) -> _Part:
        given = self.given
        rows_SD, index_K = self.bank.host_rows("centres")
        bias_S = self.bank.host_rows("bias")[0] if self.bank.bias else None
        targets = slice(*np.searchsorted(given.column_P, [start, stop]).tolist())
        sample_P = given.row_P[targets]
        if sample_n is not None:
            sample_P = np.searchsorted(sample_n, sample_P)
            if index_K is None:
                rows_SD, bias_S = rows_SD[start:stop], None if bias_S is None else bias_S[start:stop]
            else:
                index_K = index_K[start:stop]
        problem = softmax.Problem(
            _of_samples(given.scaled_ND, sample_n),
            rows_SD,
            bias_S,
            index_K,
            given.column_P[targets] - start,
            sample_P,
            cosine=self.head.margin is not None,
            bfloat16=self.head.compute_dtype == "bfloat16",
        )
        return _Part(sample_n, start, stop, targets, softmax.Softmax(problem, exps_KN))

    def forward(self) -> tuple[paddle.Tensor, paddle.Tensor, paddle.Tensor]:
        samples = len(self.given.scaled_ND)
        max_N, sum_N = np.full(samples, LOWEST, np.float32), np.zeros(samples, np.float32)
        for part in self.parts:
            of_part = slice(None) if part.sample_n is None else part.sample_n
            max_bn, sum_bn = part.softmax.forward()
            max_n = max_bn.max(axis=0)
            max_N[of_part] = max_n
            sum_N[of_part] = (sum_bn * np.exp(max_bn - max_n)).sum(axis=0)
        max_N, sum_N = tensor_of(max_N), tensor_of(sum_N)
        return max_N, max_N, sum_N

    def backward(self, lse_N, dtarget_P, x_ND, factor) -> paddle.Tensor:
        grads = {name: self.bank.gradient(name) for name in self.bank.names}
        if self.given.bounds is None:
            (part,) = self.parts
            grad_ND = part.softmax.backward(lse_N, dtarget_P, x_ND, grads["centres"], grads.get("bias"))
        else:
            grad_ND = self._backward_parts(lse_N, dtarget_P, x_ND, grads)
        if self.bank.bias:
            grads["bias"].multiply_(factor)
        if not self.head.sharded:
            for grad in grads.values():
                distributed.all_reduce(grad)
        self.head.workspace.give_back(self.exps)
        return tensor_of(grad_ND)

    def _backward_parts(self, lse_N, dtarget_P, x_ND, grads: dict[str, paddle.Tensor]) -> np.ndarray:
        """Compute the gradients range by range: by the samples [N, D], and `grads` of the rows, 0 in a range without
        samples."""
        for grad in grads.values():
            grad.zero_()
        grad_ND = np.zeros(x_ND.shape, np.float32)
        for part in self.parts:
            rows = {name: grad[part.start : part.stop] for name, grad in grads.items()}
            grad_ND[part.sample_n] = part.softmax.backward(
                _of_samples(lse_N, part.sample_n),
                None if dtarget_P is None else dtarget_P.numpy()[part.targets],
                _of_samples(x_ND, part.sample_n),
                rows["centres"],
                rows.get("bias"),
            )
        return grad_ND


def _spans(
    bounds: np.ndarray | None, samples: int, classes: int
) -> Iterator[tuple[np.ndarray | None, int, int, int]]:
    """Yield the samples of each range (None: all), how many they are, and the range's selected classes [start, stop)."""
    if bounds is None:
        yield None, samples, 0, classes
        return
    distinct_2R, range_N = np.unique(bounds, axis=1, return_inverse=True)
    for number, (start, stop) in enumerate(distinct_2R.T.tolist()):
        sample_n = np.flatnonzero(range_N.ravel() == number)
        if stop > start:
            yield sample_n, len(sample_n), start, stop


def _of_samples(x_N: paddle.Tensor, sample_n: np.ndarray | None) -> paddle.Tensor | np.ndarray:
    return x_N if sample_n is None else x_N.numpy()[sample_n]


class PaddleBackend:
    """Runs Paddle's ops, a block of classes at a time."""

    def __init__(self, head, given: BackendInput, keep: bool | None):
        self.given = given
        self.head = head
        self.margin = head.margin
        self.bank = head.bank
        block, fits = plan_blocks(
            given.most,
            self.bank.selected,
            self.bank.width,
            head.sub_centres,
            head.budget,
            head.compute_dtype,
        )
        self.hooked = self.margin is not None and self.margin.has_others
        if self.hooked or self.head.sub_centres > 1:
            keep = False  # backward needs the slopes and the nearest sub-centres again, not the exponentials alone
        self.blocks = [
            (start, min(start + block, self.bank.selected)) for start in range(0, self.bank.selected, block)
        ]
        self.kept: list | None = [] if (fits if keep is None else keep) else None

    def forward(self) -> tuple[paddle.Tensor, paddle.Tensor, paddle.Tensor]:
        """Compute three numbers of each sample over the shard's sampled logits but its target, [N] each:
        their maximum, their maximum before the margin's hook, and the sum of exp(logit - maximum)."""
        # The numbers of a block without classes, for a shard that has none.
        samples = len(self.given.scaled_ND)
        plain, maxima, sums = [[paddle.full([samples], value)] for value in (LOWEST, LOWEST, 0.0)]
        for start, stop in self.blocks:
            exp_Nb, plain_N, _, _ = self.logits(start, stop)
            max_N = exp_Nb.max(axis=1).clip(min=LOWEST) if self.hooked else plain_N
            exp_Nb.subtract_(max_N.unsqueeze(1)).exp_()
            plain.append(plain_N)
            maxima.append(max_N)
            sums.append(exp_Nb.sum(axis=1))
            if self.kept is not None:
                self.kept.append((exp_Nb, max_N))
        maxima_bN, sums_bN = paddle.stack(maxima), paddle.stack(sums)
        max_N = maxima_bN.max(axis=0)
        sum_N = (sums_bN * (maxima_bN - max_N).exp()).sum(axis=0)
        return max_N, paddle.stack(plain).max(axis=0), sum_N

    def logits(self, start: int, stop: int):
        """Compute a block's scaled logits [N, b], targets at -inf; their row maximum before the margin's hook
        [N]; the hook's slopes [N, b] and the nearest sub-centres [N, b, J], None where there are none."""
        logit_Nb, nearest_NbJ = self.head.similarity.logits(
            self.given.scaled_ND, start, stop, self.head.compute_dtype
        )
        logit_Nb = self._without_other_ranges(logit_Nb, start, stop)
        # -inf, not the plain target: that may exceed the normaliser, which holds the target with margin.
        self.set_targets(logit_Nb, start, stop, float("-inf"))
        max_N = logit_Nb.max(axis=1).clip(min=LOWEST)
        if not self.hooked:
            return logit_Nb, max_N, None, nearest_NbJ
        cos_Nb, slope_Nb = self.margin.others(logit_Nb / self.head.scale, *self.given.cosines)
        return cos_Nb * self.head.scale, max_N, slope_Nb, nearest_NbJ

    def _without_other_ranges(self, logit_Nb: paddle.Tensor, start: int, stop: int) -> paddle.Tensor:
        """Set the logits of classes outside the range of a sample's class to -inf."""
        if self.given.bounds is None:
            return logit_Nb
        first_N, stop_N = self.given.bounds
        if (first_N <= start).all() and (stop <= stop_N).all():
            return logit_Nb
        class_b = paddle.arange(start, stop)
        first_N1, stop_N1 = (tensor_of(bound_N).unsqueeze(1) for bound_N in (first_N, stop_N))
        inside_Nb = (first_N1 <= class_b) & (class_b < stop_N1)
        return paddle.where(inside_Nb, logit_Nb, paddle.full([], float("-inf")))

    def set_targets(self, x_Nb: paddle.Tensor, start: int, stop: int, value_P: paddle.Tensor | float) -> None:
        """Overwrite the block's target entries in place with their part of `value_P` (or with one number)."""
        first, last = np.searchsorted(self.given.column_P, [start, stop])
        if first == last:
            return
        columns = tensor_of(self.given.column_P[first:last] - start)
        value = paddle.full([], value_P) if isinstance(value_P, float) else value_P[first:last]
        x_Nb.index_put_((self.given.rows[first:last], columns), value)

    def backward(
        self,
        lse_N: paddle.Tensor,
        dtarget_P: paddle.Tensor | None,
        x_ND: paddle.Tensor,
        factor: paddle.Tensor,
    ) -> paddle.Tensor:
        """Compute the gradient of the summed losses by the scaled embeddings, [N, D], and give the bank that
        by its rows.

        Args:
            lse_N: logarithm of the samples' whole denominators.
            dtarget_P: gradient by the targets' logits; None where there are none.
            x_ND: the scaled embeddings times `factor`.
            factor: gradient of the mean loss over the number of samples.
        """
        grad_ND = paddle.zeros_like(x_ND)
        for number, (start, stop) in enumerate(self.blocks):
            dlogit_Nb, nearest_NbJ = self._probabilities(number, lse_N)
            if dtarget_P is not None:
                self.set_targets(dlogit_Nb, start, stop, dtarget_P)
            part_ND, centre_grad = self.head.similarity.gradient(
                dlogit_Nb, nearest_NbJ, x_ND, start, stop, self.head.compute_dtype
            )
            grad_ND += part_ND
            self._to_bank("centres", start, stop, centre_grad)
            if self.bank.bias:
                self._to_bank("bias", start, stop, dlogit_Nb.sum(axis=0) * factor)
        self.kept = None
        return grad_ND

    def _probabilities(self, number: int, lse_N) -> tuple[paddle.Tensor, paddle.Tensor | None]:
        """Compute the softmax of block `number` times the hook's slopes, [N, b], 0 at the targets, and the
        nearest sub-centres."""
        if self.kept is not None:
            exp_Nb, max_N = self.kept[number]
            self.kept[number] = None
            return exp_Nb.multiply_((max_N - lse_N).exp().unsqueeze(1)), None
        logit_Nb, _, slope_Nb, nearest_NbJ = self.logits(*self.blocks[number])
        prob_Nb = logit_Nb.subtract_(lse_N.unsqueeze(1)).exp_()
        if slope_Nb is not None:
            # At the targets, 0 times a slope of -inf: they are overwritten, but NaN would not be.
            prob_Nb = prob_Nb * slope_Nb.clip(min=LOWEST)
        return prob_Nb, nearest_NbJ

    def _to_bank(self, name: str, start: int, stop: int, grad: paddle.Tensor) -> None:
        if not self.head.sharded:
            distributed.all_reduce(grad)
        self.bank.set_gradient(name, start, stop, grad)


class Workspace:
    """Keeps memory for the exponentials beyond a step: fresh pages cost more time than the work on them."""

    def __init__(self):
        self._spare: np.ndarray | None = None

    def take(self, numbers: int) -> np.ndarray:
        """Hand out at least so many float32."""
        memory = self._spare
        self._spare = None
        if memory is None or len(memory) < numbers:
            memory = np.empty(numbers + numbers // 16, np.float32)  # untouched pages cost nothing
        return memory

    def give_back(self, taken: np.ndarray | None) -> None:
        """Take memory back. A step without a backward pass keeps what it took, and the next step gets new
        memory."""
        self._spare = self._spare if taken is None else taken
