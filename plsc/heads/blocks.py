"""Compute one block of classes, from its centres to logits and back, and plan how large a block may be.
Symbols: softmax.py.

With a margin, embeddings and centres are compared by cosine; rows of the bank are never stored normalised.
With J > 1 a bank row holds J centres one after the other, and a class is as near as the nearest of them (Deng
et al., Sub-center ArcFace, ECCV 2020).
"""

import functools

import paddle
import paddle.nn.functional as F

from plsc import native as kernels
from plsc.distributed import paddle_internals
from plsc.distributed.device import on_device, takes_device_path
from plsc.heads.banks.bank import Selection
from plsc.heads.constants import filled
from plsc.heads.spec import HeadSpec
from plsc.native.heads import rows as row_kernels

_CACHED_ROWS = 4096  # a block of this many classes stays in a processor's cache between its passes
SMALLEST_SQUARE = 1.17549435e-38  # the smallest normal float32, see `Vectors`


def plan_blocks(
    num_samples: int, num_classes: int, width: int, sub_centres: int, budget: int, dtype: str = "float32"
) -> tuple[int, bool]:
    """Plan the classes per block, and whether to keep all exponentials and normalised rows, so that the
    temporaries stay within `budget` bytes. This is for Paddle's operators; the kernels of CPUs have blocks of
    their own (plsc/native/heads/softmax.py). The size of a block changes results by rounding only.

    A class of a block takes 3 numbers per sample and sub-centre (logits, their exponentials, one temporary)
    and 4 rows of the bank's `width`; where products round what they multiply to 16 bits, 2 numbers and 2 rows
    more. A class that is kept takes its exponentials and its normalised row. A CPU's blocks are also no
    larger than its cache; a GPU is the faster, the larger they are.

    dtype: that the matrix products round to.
    """
    rounds = dtype != "float32"
    per_class = 4 * ((3 + 2 * rounds) * num_samples * sub_centres + (4 + 2 * rounds) * width)
    most = num_classes if takes_device_path() else _CACHED_ROWS
    if num_classes <= most and num_classes * per_class <= budget:
        return max(1, num_classes), True
    kept = num_classes * (4 * num_samples + (4 + 2 * rounds) * width)
    keep = kept + min(num_classes, 256) * per_class <= budget
    block = (budget - kept * keep) // per_class
    return max(1, min(num_classes, most, block)), keep


def logits_dtype(spec: HeadSpec, dtype: str) -> str:
    """Return what the product of samples and centres is rounded to, where the other two are rounded to
    `dtype`.

    A device rounds a product's result once more. In bfloat16 a logit of 50 is off by up to 0.125, and the
    gradient by the embeddings by 1.5 to 1.9 %. Scaled cosines fit float16, whose steps are an eighth of that.
    """
    return "float16" if dtype == "bfloat16" and spec.margin is not None and on_device() else dtype


def rounded(x: paddle.Tensor, dtype: str) -> paddle.Tensor:
    """Round a float32 matrix to "float32", "bfloat16" or "float16"."""
    return x if dtype == "float32" else x.astype(dtype)


def product(
    a: paddle.Tensor, b: paddle.Tensor, transpose_a: bool = False, transpose_b: bool = False
) -> paddle.Tensor:
    """Multiply two matrices of float32, or two of the same 16-bit dtype -> float32.

    On a GPU a product of 16 bits sums in float32 and rounds its result once more. A CPU multiplies the
    rounded numbers in float32.
    """
    if a.dtype == paddle.float32:
        return paddle.matmul(a, b, transpose_a, transpose_b)
    if on_device():
        return _device_product(a, b, transpose_a, transpose_b).astype("float32")
    return paddle.matmul(a.astype("float32"), b.astype("float32"), transpose_a, transpose_b)


def _device_product(a, b, transpose_a, transpose_b) -> paddle.Tensor:
    return paddle.matmul(a, b, transpose_a, transpose_b)  # of its own, for tests: CPUs have none of 16 bits


class Vectors:
    """Takes embeddings or class centres [n, D] at length 1, or as they are, and leads a gradient back.

    The rule for lengths, of kernels and operators: a vector whose square is below the smallest normal float32
    (lengths below 1.1e-19) counts as zero: it stays zero, and so does its gradient, since it has no
    direction. A vector whose square overflows (lengths above 1.8e19) is NaN, so that the step is skipped.
    Operators add 1.2e-38 to the square: they shorten vectors of length 1e-16 by 1e-6.

    Args:
        given: the vectors.
        cosine: whether they are taken at length 1.
        many: whether a pass over the vectors to write NaN is too expensive. The caller then adds `overflow`
            to what it computes of them.

    Attributes: `values`, the vectors [n, D].
    """

    def __init__(self, given: paddle.Tensor, cosine: bool, many: bool = False):
        self.values = given
        self._norm = None
        self._inverse = None
        if not cosine:
            return
        if given.place.is_cpu_place() and kernels.library():
            self.values, self._inverse = paddle.empty_like(given), paddle.empty([len(given), 1])
            row_kernels.unit_rows(given, self.values, self._inverse)
            return
        # Paddle's op does in one pass what would take three, and its gradient in one what would take five.
        self._given = given.detach()
        self.values, self._norm = paddle_internals.normalise(self._given, SMALLEST_SQUARE)
        if not many:
            self.values.add_(self._norm * 0.0)

    @property
    def overflow(self) -> paddle.Tensor | None:
        """A scalar: 0, or NaN if a square overflowed. None if the values have the NaN themselves."""
        return None if self._norm is None else (self._norm * 0.0).sum()

    @functools.cached_property
    def length(self) -> paddle.Tensor:
        """The lengths before they were divided by them, [n]; next to 0 for a vector of zeros."""
        if self._norm is not None:
            return self._norm.flatten()
        return paddle.where(self._inverse > 0, 1.0 / self._inverse, self._inverse).flatten()

    def gradient(self, grad: paddle.Tensor) -> paddle.Tensor:
        """Turn a gradient by `values` into that by the given vectors. It can be called once."""
        if self._inverse is not None:
            turned = paddle.empty_like(grad)
            row_kernels.turn_units(grad, self.values, self._inverse, turned)
            return turned
        if self._norm is None:
            return grad
        zero_n1 = self._norm < filled([], (2 * SMALLEST_SQUARE) ** 0.5)
        # What is divided by an infinite length is 0.
        norm_n1 = paddle.where(zero_n1, filled(self._norm.shape, float("inf")), self._norm)
        return paddle_internals.normalise_gradient(self._given, norm_n1, grad, SMALLEST_SQUARE)


class Block:
    """Compares samples with the rows [start, stop) of a selection, by inner products (plus bias) or cosines,
    and leads gradients back.

    dtype: to which the three matrix products round what they multiply.
    """

    def __init__(self, spec: HeadSpec, selection: Selection, start: int, stop: int, dtype: str):
        self.selection = selection
        self.sub_centres = spec.sub_centres
        self.start = start
        self.stop = stop
        self.dtype = dtype
        centres = selection.rows("centres", start, stop)
        if spec.sub_centres > 1:
            centres = centres.reshape([(stop - start) * spec.sub_centres, -1])
        self.centres = Vectors(centres, spec.margin is not None, many=True)
        self.rounded = rounded(self.centres.values, dtype)
        self._logits_dtype = logits_dtype(spec, dtype)

    def logits(self, x_ND: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor | None]:
        """Compare x, rounded to the `logits_dtype`, with its classes -> similarities [N, b], and which
        sub-centre was the nearest, [N, b, J] 0 or 1 (None for J = 1)."""
        same = self._logits_dtype == self.dtype
        centres = self.rounded if same else rounded(self.centres.values, self._logits_dtype)
        logit = product(x_ND, centres, transpose_b=True)
        if self.sub_centres > 1:
            logit_NbJ = logit.reshape([len(logit), self.stop - self.start, self.sub_centres])
            nearest_NbJ = F.one_hot(logit_NbJ.argmax(axis=2), self.sub_centres)
            return logit_NbJ.max(axis=2), nearest_NbJ
        if self.selection.bank.bias:
            logit.add_(self.selection.rows("bias", self.start, self.stop))
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
        grad = self.centres.gradient(grad).reshape([self.stop - self.start, -1])
        return product(weight_Nb, self.rounded).multiply_(share_N1), grad


class TargetRows:
    """Compares each sample with one class, its own: the selected row of number column_N.

    Attributes: column_N; plain_N, the similarities.
    """

    def __init__(self, spec: HeadSpec, selection: Selection, x_ND: paddle.Tensor, column_N: paddle.Tensor):
        self.column_N = column_N
        self._nearest_NJ1 = None
        rows_ND = selection.gather("centres", column_N)
        if spec.sub_centres == 1:
            self._centres = Vectors(rows_ND, spec.margin is not None, many=True)  # a block has these, too
            self.plain_N = (self._centres.values * x_ND).sum(axis=1)
        else:
            self._centres = Vectors(rows_ND.reshape([len(x_ND) * spec.sub_centres, -1]), True, many=True)
            centre_NJD = self._centres.values.reshape([len(x_ND), spec.sub_centres, -1])
            product_NJ = (centre_NJD * x_ND.unsqueeze(1)).sum(axis=2)
            self.plain_N = product_NJ.max(axis=1)
            self._nearest_NJ1 = F.one_hot(product_NJ.argmax(axis=1), spec.sub_centres).unsqueeze(2)
        if selection.bank.bias:
            self.plain_N = self.plain_N + selection.gather("bias", column_N)

    def gradient(self, dtarget_N: paddle.Tensor, x_ND: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Compute the gradients by the embeddings [N, D] and by the samples' own bank rows [N, J D], from
        that by the similarities; as `Block.gradient` does."""
        weight_N1 = dtarget_N.unsqueeze(1)
        if self._nearest_NJ1 is None:
            return self._centres.values * weight_N1, self._centres.gradient(x_ND * weight_N1)
        weight_NJ1 = weight_N1.unsqueeze(2) * self._nearest_NJ1
        by_row_NJD = x_ND.unsqueeze(1) * weight_NJ1
        by_x_ND = (self._centres.values.reshape(by_row_NJD.shape) * weight_NJ1).sum(axis=1)
        return by_x_ND, self._centres.gradient(by_row_NJD.flatten(0, 1)).reshape([len(x_ND), -1])
