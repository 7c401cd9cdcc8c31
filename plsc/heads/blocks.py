"""Compute logits and gradients for one block of classes, and plan the block size. softmax.py defines
the symbols.

With a margin, embeddings and centres are compared by cosine. The bank never stores normalised rows. With
J > 1 a bank row holds J sub-centres one after the other, and the nearest one gives the class's
similarity (Deng et al., Sub-center ArcFace, ECCV 2020).
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

_CACHED_ROWS = 4096  # a block of this many classes stays in the processor's cache between passes
SMALLEST_SQUARE = 1.17549435e-38  # the smallest normal float32, see `Vectors`


def plan_blocks(
    num_samples: int, num_classes: int, width: int, sub_centres: int, budget: int, dtype: str = "float32"
) -> tuple[int, bool]:
    """Plan the block size, and whether to keep all exponentials and normalised rows.

    The temporaries stay within the budget. The plan is for Paddle's operators. The CPU kernels have their own
    blocks (plsc/native/heads/softmax.py). The block size changes results by rounding only.

    A class of a block takes 3 numbers per sample and sub-centre (logit, exponential, one temporary) and 4
    rows as wide as the bank's. If products round their inputs to 16 bits, it takes 2 more numbers and 2 more
    rows. A kept class takes its exponentials and its normalised row. On a CPU a block also fits into the
    cache. On a GPU larger blocks are faster.

    Args:
        num_samples: number of samples.
        num_classes: how many selected classes.
        width: numbers per bank row.
        sub_centres: sub-centres per class.
        budget: bytes for the temporaries.
        dtype: dtype that the matrix products round their inputs to.

    Returns how many classes a block has, and whether to keep the exponentials.
    """
    rounds = dtype != "float32"
    per_class = 4 * ((3 + 2 * rounds) * num_samples * sub_centres + (4 + 2 * rounds) * width)
    largest = num_classes if takes_device_path() else _CACHED_ROWS
    if num_classes <= largest and num_classes * per_class <= budget:
        return max(1, num_classes), True
    kept = num_classes * (4 * num_samples + (4 + 2 * rounds) * width)
    keep = kept + min(num_classes, 256) * per_class <= budget
    block = (budget - kept * keep) // per_class
    return max(1, min(num_classes, largest, block)), keep


def logits_dtype(spec: HeadSpec, dtype: str) -> str:
    """Return the dtype in which samples and centres are multiplied, if the other two products have `dtype`.

    A GPU also rounds a product's result. In bfloat16 a logit near 50 has an error up to 0.125, and the
    error of the embeddings' gradient is 1.5 to 1.9 %. Scaled cosines fit into float16, whose rounding steps
    are an eighth as large.
    """
    return "float16" if dtype == "bfloat16" and spec.margin is not None and on_device() else dtype


def rounded(x: paddle.Tensor, dtype: str) -> paddle.Tensor:
    """Round a float32 matrix to "float32", "bfloat16" or "float16"."""
    return x if dtype == "float32" else x.astype(dtype)


def product(
    a: paddle.Tensor, b: paddle.Tensor, transpose_a: bool = False, transpose_b: bool = False
) -> paddle.Tensor:
    """Multiply two float32 matrices, or two matrices with the same 16-bit dtype. The result is float32.

    On a GPU a 16-bit product sums in float32 and rounds its result to 16 bits. A CPU multiplies the rounded
    numbers in float32.
    """
    if a.dtype == paddle.float32:
        return paddle.matmul(a, b, transpose_a, transpose_b)
    if on_device():
        return _device_product(a, b, transpose_a, transpose_b).astype("float32")
    return paddle.matmul(a.astype("float32"), b.astype("float32"), transpose_a, transpose_b)


def _device_product(a, b, transpose_a, transpose_b) -> paddle.Tensor:
    return paddle.matmul(a, b, transpose_a, transpose_b)  # tests replace it on CPUs


class Vectors:
    """Normalises embeddings or class centres if needed, and computes the gradient with respect to the
    original vectors.

    Kernels and operators have the same rule for lengths. If a vector's square is below the smallest normal
    float32 (length below 1.1e-19), the vector has no direction. Both the vector and its gradient are then
    zero. If the square overflows (length above 1.8e19), the vector is NaN, and the step is skipped. Operators
    add 1.2e-38 to the square, which shortens vectors of length 1e-16 by 1e-6.

    Args:
        given: vectors, float32 [n, D].
        cosine: whether to scale the vectors to length 1.
        many: whether a pass over the vectors to write NaN is too expensive. The caller then adds `overflow`
            to its results.

    Attributes:
        values: vectors [n, D], scaled to length 1 if `cosine`.
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
        # Paddle's op takes one pass instead of three, and its gradient takes one pass instead of five.
        self._given = given.detach()
        self.values, self._norm = paddle_internals.normalise(self._given, SMALLEST_SQUARE)
        if not many:
            self.values.add_(self._norm * 0.0)

    @property
    def overflow(self) -> paddle.Tensor | None:
        """Scalar: 0, or NaN if a square overflowed. None if the values themselves contain the NaN."""
        return None if self._norm is None else (self._norm * 0.0).sum()

    @functools.cached_property
    def length(self) -> paddle.Tensor:
        """The original vectors' lengths, float32 [n]. The length of a zero vector is close to 0."""
        if self._norm is not None:
            return self._norm.flatten()
        return paddle.where(self._inverse > 0, 1.0 / self._inverse, self._inverse).flatten()

    def gradient(self, grad: paddle.Tensor) -> paddle.Tensor:
        """Turn the gradient with respect to `values` into the gradient with respect to the original vectors.
        It can be called once."""
        if self._inverse is not None:
            turned = paddle.empty_like(grad)
            row_kernels.turn_units(grad, self.values, self._inverse, turned)
            return turned
        if self._norm is None:
            return grad
        zero_n1 = self._norm < filled([], (2 * SMALLEST_SQUARE) ** 0.5)
        # Division by an infinite length gives 0.
        norm_n1 = paddle.where(zero_n1, filled(self._norm.shape, float("inf")), self._norm)
        return paddle_internals.normalise_gradient(self._given, norm_n1, grad, SMALLEST_SQUARE)


class Block:
    """Compares samples with a block of a selection's rows, and computes the gradients. It compares by inner
    products (plus bias), or by cosines if there is a margin.

    Args:
        spec: properties of the head.
        selection: rows of the step.
        start: the block's first row.
        stop: the block's end, not included.
        dtype: dtype that the three matrix products round their inputs to.
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
        """Compare samples with the block's classes.

        Args:
            x_ND: samples [N, D], rounded to `logits_dtype`.

        Returns the similarities [N, b], and a tensor [N, b, J] that is 1 for the nearest sub-centre and 0 for
        the others (None for J = 1).
        """
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
        """Assign the gradients with respect to the logits to the nearest sub-centres, and round them. The
        result is [N, b J]."""
        if nearest_NbJ is not None:
            weight_Nb = (weight_Nb.unsqueeze(2) * nearest_NbJ).flatten(1)
        return rounded(weight_Nb, self.dtype)

    def gradient(
        self, weight_Nb: paddle.Tensor, share_N1: paddle.Tensor, x_ND: paddle.Tensor
    ) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Compute the gradients from the gradient with respect to the logits, `share_N1` times `weight_Nb`.

        Args:
            weight_Nb: result of `round_weights`, [N, b J].
            share_N1: each sample's factor, float32 [N, 1].
            x_ND: samples, float32 [N, D]. They may include the loss's mean and scale as factors.

        Returns the block's part of the gradient with respect to the embeddings [N, D], without the mean's
        and the scale's factors, and the gradient with respect to the block's bank rows [b, J D], with these
        factors if `x_ND` includes them.
        """
        grad = product(weight_Nb, rounded(x_ND * share_N1, self.dtype), transpose_a=True)
        grad = self.centres.gradient(grad).reshape([self.stop - self.start, -1])
        return product(weight_Nb, self.rounded).multiply_(share_N1), grad


class TargetRows:
    """Compares each sample with its own class.

    Args:
        spec: properties of the head.
        selection: rows of the step.
        x_ND: samples, float32 [N, D].
        column_N: each sample's class, as an index among the selected rows, int64 [N].

    Attributes:
        column_N: the argument.
        plain_N: similarities, float32 [N].
    """

    def __init__(self, spec: HeadSpec, selection: Selection, x_ND: paddle.Tensor, column_N: paddle.Tensor):
        self.column_N = column_N
        self._nearest_NJ1 = None
        rows_ND = selection.gather("centres", column_N)
        if spec.sub_centres == 1:
            self._centres = Vectors(
                rows_ND, spec.margin is not None, many=True
            )  # a block has these rows, too
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
        """Compute the gradients with respect to the embeddings [N, D] and to the samples' own bank rows
        [N, J D] from the gradient with respect to the similarities [N]. The factors are as in
        `Block.gradient`."""
        weight_N1 = dtarget_N.unsqueeze(1)
        if self._nearest_NJ1 is None:
            return self._centres.values * weight_N1, self._centres.gradient(x_ND * weight_N1)
        weight_NJ1 = weight_N1.unsqueeze(2) * self._nearest_NJ1
        by_row_NJD = x_ND.unsqueeze(1) * weight_NJ1
        by_x_ND = (self._centres.values.reshape(by_row_NJD.shape) * weight_NJ1).sum(axis=1)
        return by_x_ND, self._centres.gradient(by_row_NJD.flatten(0, 1)).reshape([len(x_ND), -1])
