"""Compute one block of classes, from its centres to logits and back, and plan how large a block may be.

    N samples   D embedding size   b classes of the block
    J sub-centres of a class (1 but for sub-centre ArcFace)

With a margin, embeddings and centres are compared by cosine; rows of the bank are never stored normalised.
With J > 1 a bank row holds J centres one after the other, and a class is as near as the nearest of them (Deng
et al., Sub-center ArcFace, ECCV 2020).
"""

from __future__ import annotations

import functools

import numpy as np
import paddle
from paddle import _C_ops

from plsc import native as kernels
from plsc.distributed.device import asynchronous, on_device
from plsc.heads.banks.bank import Bank
from plsc.native.heads import rows as row_kernels
from plsc.utils.tensors import tensor_of

_CACHED_ROWS = 4096  # a block of this many classes stays in a processor's cache between its passes
# Added to the squared length of a row, so that one of length 0 has a quotient: far below any other.
_TINY = 1e-30


def plan_blocks(
    num_samples: int, num_classes: int, width: int, sub_centres: int, budget: int, dtype: str = "float32"
) -> tuple[int, bool]:
    """Plan the classes per block, and whether to keep all exponentials and normalised rows, so that the
    temporaries stay within `budget` bytes.

    A class of a block takes 3 numbers per sample and sub-centre (logits, their exponentials, one temporary)
    and 4 rows of the bank's `width`; where products round what they multiply to 16 bits, 2 numbers and 2 rows
    more. A class that is kept takes its exponentials and its normalised row. A CPU's blocks are also no
    larger than its cache; a GPU is the faster, the larger they are.

    dtype: that the matrix products round to.
    """
    rounds = dtype != "float32"
    per_class = 4 * ((3 + 2 * rounds) * num_samples * sub_centres + (4 + 2 * rounds) * width)
    most = num_classes if asynchronous() else _CACHED_ROWS
    if num_classes <= most and num_classes * per_class <= budget:
        return max(1, num_classes), True
    kept = num_classes * (4 * num_samples + (4 + 2 * rounds) * width)
    keep = kept + min(num_classes, 256) * per_class <= budget
    block = (budget - kept * keep) // per_class
    return max(1, min(num_classes, most, block)), keep


def inverse(x: paddle.Tensor) -> paddle.Tensor:
    """Compute 1 / x, and 0 for 0."""
    return paddle.where(x > 0, 1.0 / x, x)


def unit_rows(x: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Divide the rows of `x` [n, D] by their length -> unit rows, and 1 / length [n, 1]. A zero row stays
    zero, and so does its gradient: it has no direction."""
    if x.place.is_cpu_place() and kernels.library():
        unit, scale = paddle.empty_like(x), paddle.empty([len(x), 1])
        row_kernels.unit_rows(x, unit, scale)
        return unit, scale
    scale = inverse((x * x).sum(axis=1, keepdim=True).sqrt())
    return x * scale, scale


def unit_rows_gradient(grad: paddle.Tensor, unit: paddle.Tensor, scale: paddle.Tensor) -> paddle.Tensor:
    """Turn a gradient by the unit rows [n, D] into the gradient by the rows themselves. scale: 1 / length,
    [n, 1]."""
    if grad.place.is_cpu_place() and kernels.library():
        turned = paddle.empty_like(grad)
        row_kernels.turn_units(grad, unit, scale, turned)
        return turned
    return (grad - (grad * unit).sum(axis=1, keepdim=True) * unit).multiply_(scale)


def rounded(x: paddle.Tensor, dtype: str) -> paddle.Tensor:
    """Round a float32 matrix to "float32" or "bfloat16"."""
    return x if dtype == "float32" else x.astype(dtype)


def product(
    a: paddle.Tensor, b: paddle.Tensor, transpose_a: bool = False, transpose_b: bool = False
) -> paddle.Tensor:
    """Multiply two matrices of float32, or two of bfloat16 -> float32.

    On a GPU a product of 16 bits sums in float32 and rounds its result once more. A CPU multiplies the
    rounded numbers in float32.
    """
    if a.dtype == paddle.float32:
        return paddle.matmul(a, b, transpose_a, transpose_b)
    if on_device():
        return paddle.matmul(a, b, transpose_a, transpose_b).astype("float32")
    return paddle.matmul(a.astype("float32"), b.astype("float32"), transpose_a, transpose_b)


class Rows:
    """Rows of a bank [n, D] as a step compares with them, at length 1 or as they are, and the way back from a
    gradient by them. A row of length 0 stays 0, and so does its gradient.

    Args:
        rows: of the bank. cosine: whether they are taken at length 1.
        zeros: whether some of them may have length 0.

    Attributes: values, the rows [n, D].
    """

    def __init__(self, rows: paddle.Tensor, cosine: bool, zeros: bool):
        self._zeros = zeros
        self._norm = None
        self._inverse = None
        if not cosine:
            self.values = rows
        elif rows.place.is_cpu_place() and kernels.library():
            self.values, self._inverse = unit_rows(rows)
        else:
            # Paddle's op does in one pass what would take three, and its gradient in one what would take
            # five.
            self._rows = rows.detach()
            self._rows.stop_gradient = False
            with paddle.enable_grad():
                self.values, self._norm = _C_ops.norm(self._rows, 1, _TINY, False)

    @property
    def length(self) -> paddle.Tensor:
        """The rows' lengths before they were divided by them, [n]; next to 0 for a row of zeros."""
        return inverse(self._inverse).flatten() if self._norm is None else self._norm.flatten().detach()

    def gradient(self, grad: paddle.Tensor) -> paddle.Tensor:
        """Turn a gradient by `values` into that by the rows. It can be called once."""
        if self._inverse is not None:
            return unit_rows_gradient(grad, self.values, self._inverse)
        if self._norm is None:
            return grad
        paddle.autograd.backward([self.values], [grad])
        turned = self._rows.grad
        if self._zeros:  # 0 up to twice the length that a row of zeros has, 1 from three times on
            turned.multiply_(paddle.scale(self._norm, _TINY**-0.5, -2.0).clip(0.0, 1.0))
        return turned


class Block:
    """Compares samples with the selected rows [start, stop) of a bank, by inner products (plus bias) or
    cosines, and leads gradients back.

    dtype: to which the three matrix products round what they multiply.
    """

    def __init__(self, similarity: Similarity, start: int, stop: int, dtype: str = "float32"):
        self.bank = similarity.bank
        self.sub_centres = similarity.sub_centres
        self.start = start
        self.stop = stop
        self.dtype = dtype
        centres = self.bank.rows("centres", start, stop)
        if self.sub_centres > 1:
            centres = centres.reshape([(stop - start) * self.sub_centres, -1])
        self.rows = Rows(centres, similarity.cosine, self.bank.has_zeros)
        self.rounded = rounded(self.rows.values, dtype)

    def logits(self, x_ND: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor | None]:
        """Compare x, rounded to the block's dtype, with its classes -> similarities [N, b], and which
        sub-centre was the nearest, [N, b, J] 0 or 1 (None for J = 1)."""
        logit = product(x_ND, self.rounded, transpose_b=True)
        if self.sub_centres > 1:
            logit_NbJ = logit.reshape([len(logit), self.stop - self.start, self.sub_centres])
            nearest_NbJ = paddle.nn.functional.one_hot(logit_NbJ.argmax(axis=2), self.sub_centres)
            return logit_NbJ.max(axis=2), nearest_NbJ
        if self.bank.bias:
            logit.add_(self.bank.rows("bias", self.start, self.stop))
        return logit, None

    def round_weights(self, weight_Nb: paddle.Tensor, nearest_NbJ: paddle.Tensor | None) -> paddle.Tensor:
        """Round gradients by the logits, and spread them over sub-centres -> [N, b J]."""
        if nearest_NbJ is not None:
            weight_Nb = (weight_Nb.unsqueeze(2) * nearest_NbJ).flatten(1)
        return rounded(weight_Nb, self.dtype)

    def gradient(
        self, weight_Nb: paddle.Tensor, share_N1: paddle.Tensor, x_ND: paddle.Tensor
    ) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Compute the block's part of the gradient by the embeddings [N, D], and the gradient by its bank
        rows [b, J D], where that by the logits is `share_N1` times `weight_Nb`.

        Both lack the factors of the loss's mean and scale, unless `x_ND` has them: then the second has them,
        too.
        """
        grad = product(weight_Nb, rounded(x_ND * share_N1, self.dtype), transpose_a=True)
        grad = self.rows.gradient(grad).reshape([self.stop - self.start, -1])
        return product(weight_Nb, self.rounded).multiply_(share_N1), grad


class Similarity:
    """Compares embeddings with the selected rows of a bank, by inner products (plus bias) or cosines."""

    def __init__(self, bank: Bank, cosine: bool, sub_centres: int):
        self.bank = bank
        self.cosine = cosine
        self.sub_centres = sub_centres

    def logits(self, x_ND: paddle.Tensor, start: int, stop: int) -> paddle.Tensor:
        """Compare x with selected rows [start, stop) -> similarities [N, b]."""
        return Block(self, start, stop).logits(x_ND)[0]

    def host_targets(self, x_ND: paddle.Tensor, row_P: np.ndarray, column_P: np.ndarray) -> paddle.Tensor:
        """Compare these rows of x with their own classes by a kernel, in host memory -> [N], 0 of other
        rows."""
        rows_SD, index_K = self.bank.host_rows("centres")
        class_P = column_P if index_K is None else index_K[column_P]
        plain_N = np.zeros(len(x_ND), np.float32)
        plain_N[row_P] = row_kernels.pair_products(x_ND, row_P, rows_SD, class_P, self.cosine)
        if self.bank.bias:
            plain_N[row_P] += self.bank.gather("bias", tensor_of(column_P)).numpy()
        return tensor_of(plain_N)


class TargetRows:
    """Compares each sample with one class, its own: the selected row of number column_N.

    Attributes: column_N; plain_N, the similarities.
    """

    def __init__(self, similarity: Similarity, x_ND: paddle.Tensor, column_N: paddle.Tensor):
        bank = similarity.bank
        self.column_N = column_N
        self._nearest_NJ1 = None
        sub_centres = similarity.sub_centres
        rows_ND = bank.gather("centres", column_N)
        if sub_centres == 1:
            self._rows = Rows(rows_ND, similarity.cosine, bank.has_zeros)
            self.plain_N = (self._rows.values * x_ND).sum(axis=1)
        else:
            self._rows = Rows(rows_ND.reshape([len(x_ND) * sub_centres, -1]), True, bank.has_zeros)
            of_rows_NJD = self._rows.values.reshape([len(x_ND), sub_centres, -1])
            product_NJ = (of_rows_NJD * x_ND.unsqueeze(1)).sum(axis=2)
            self.plain_N = product_NJ.max(axis=1)
            nearest_NJ = paddle.nn.functional.one_hot(product_NJ.argmax(axis=1), sub_centres)
            self._nearest_NJ1 = nearest_NJ.unsqueeze(2)
        if bank.bias:
            self.plain_N = self.plain_N + bank.gather("bias", column_N)

    def gradient(self, dtarget_N: paddle.Tensor, x_ND: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Compute the gradients by the embeddings [N, D] and by the samples' own bank rows [N, J D], from
        that by the similarities; as `Block.gradient` does."""
        weight_N1 = dtarget_N.unsqueeze(1)
        if self._nearest_NJ1 is None:
            return self._rows.values * weight_N1, self._rows.gradient(x_ND * weight_N1)
        weight_NJ1 = weight_N1.unsqueeze(2) * self._nearest_NJ1
        by_row_NJD = x_ND.unsqueeze(1) * weight_NJ1
        by_x_ND = (self._rows.values.reshape(by_row_NJD.shape) * weight_NJ1).sum(axis=1)
        return by_x_ND, self._rows.gradient(by_row_NJD.flatten(0, 1)).reshape([len(x_ND), -1])


@functools.lru_cache(maxsize=16)
def _count_up(count: int, device: str) -> paddle.Tensor:
    return paddle.arange(count)


def count_up(count: int) -> paddle.Tensor:
    """Return 0 to count - 1 on the device, int64, made once; not to be changed."""
    return _count_up(count, paddle.get_device())
