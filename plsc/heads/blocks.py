"""Compute logits and gradients for one block of classes, and plan the block size.

softmax.py's docstring defines the letters in shapes and names. A block is the classes whose logits are
computed together. The similarity between an embedding and a class is the logit divided by the scale. With a
margin, the similarity is the cosine between the embedding and the class centre. Without a margin, it is their
inner product plus the bias. A bank stores rows that are not normalised, so each step normalises them.

With J > 1, a bank row contains J sub-centres one after the other. The similarity to the class is then the
similarity to its nearest sub-centre (Deng et al., Sub-center ArcFace, ECCV 2020).
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

# A block with at most this many classes stays in the processor's cache from one operation to the next.
_CACHED_ROWS = 4096
SMALLEST_SQUARE = 1.17549435e-38  # smallest normal float32 number, see `Vectors`


def plan_blocks(
    num_samples: int, num_classes: int, width: int, sub_centres: int, budget: int, dtype: str = "float32"
) -> tuple[int, bool]:
    """Plan how many classes a block of `PaddleBackend` has, and whether to keep exponentials and normalised
    rows for the backward pass. The compiled kernels have other blocks (plsc/native/heads/softmax.py).

    The temporary tensors must fit into the budget. Each class in a block needs three numbers per sample and
    sub-centre (the logit, the exponential and a temporary one), and four copies of its row. If the matrix
    products' inputs are rounded to 16 bits, the class needs two more numbers per sample and sub-centre, and
    two more copies of its row. If exponentials are kept, each selected class also needs an exponential per
    sample, and copies of its normalised row. On a CPU, a block must also fit into the cache. On a GPU, large
    blocks are faster.

    The block size changes the results only by rounding.

    Args:
        num_samples: how many samples this rank processes.
        num_classes: how many classes are selected.
        width: the bank's row length.
        sub_centres: sub-centres per class.
        budget: memory limit for the temporary tensors, in bytes.
        dtype: dtype to which the matrix products' inputs are rounded.

    Returns how many classes a block has, and whether to keep exponentials and normalised rows.
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
    """Return the dtype in which embeddings are multiplied by centres.

    `dtype` is the dtype of the two matrix products in the backward pass. The result is `dtype` with one
    exception: on a device such as a GPU, a head with a margin uses float16 instead of bfloat16. A GPU also
    rounds a product's result. In bfloat16, a logit near 50 has an error up to 0.125, and the gradient with
    respect to the embeddings then has an error between 1.5 and 1.9 %. In float16, rounding errors are an
    eighth as large. With a margin, logits are scaled cosines, which do not exceed the range of float16.
    """
    return "float16" if dtype == "bfloat16" and spec.margin is not None and on_device() else dtype


def rounded(x: paddle.Tensor, dtype: str) -> paddle.Tensor:
    """Round a float32 matrix to `dtype`: "bfloat16", "float16", or "float32", which changes nothing."""
    return x if dtype == "float32" else x.astype(dtype)


def product(
    a: paddle.Tensor, b: paddle.Tensor, transpose_a: bool = False, transpose_b: bool = False
) -> paddle.Tensor:
    """Multiply two float32 matrices, or two matrices with the same 16-bit dtype. Return a float32 matrix.

    On a GPU, the product of 16-bit matrices is summed in float32, and its result is rounded to 16 bits. On a
    CPU, the 16-bit numbers are multiplied in float32, and the result is not rounded.
    """
    if a.dtype == paddle.float32:
        return paddle.matmul(a, b, transpose_a, transpose_b)
    if on_device():
        return _device_product(a, b, transpose_a, transpose_b).astype("float32")
    return paddle.matmul(a.astype("float32"), b.astype("float32"), transpose_a, transpose_b)


def _device_product(a, b, transpose_a, transpose_b) -> paddle.Tensor:
    return paddle.matmul(a, b, transpose_a, transpose_b)  # tests replace it on CPUs


class Vectors:
    """Normalises embeddings or class centres, and computes the gradient with respect to the original vectors.

    Vectors with extreme norms are special cases. If a squared norm is below the smallest normal float32
    number (norm below 1.1e-19), the gradient is zero. If a squared norm overflows (norm above 1.8e19), the
    logits are NaN, and the step is skipped.

    Compiled kernels and Paddle's operators differ in one point. If a squared norm is below the smallest
    normal number, the kernels return a zero vector. Paddle's operators add 1.2e-38 to each squared norm. For
    such a vector, they return a vector with a norm below 1. For a vector with norm 1e-16, they return a
    vector with norm 1 - 1e-6.

    Args:
        given: original vectors, float32 [n, D].
        cosine: whether to normalise. If False, the vectors stay unchanged.

    Attributes:
        values: vectors [n, D], with norm 1 if `cosine`. If a squared norm overflows, the kernels write NaN
            here, but Paddle's operators write 0. Another pass over all centres would take too long. The NaN
            is therefore in the result of `times` or `one_or_nan`.
    """

    def __init__(self, given: paddle.Tensor, cosine: bool):
        self.values = given
        self._norm = None
        self._inverse = None
        if not cosine:
            return
        if given.place.is_cpu_place() and kernels.library():
            self.values, self._inverse = paddle.empty_like(given), paddle.empty([len(given), 1])
            row_kernels.unit_rows(given, self.values, self._inverse)
            return
        # This operator of Paddle reads the vectors once. Separate operators would read them three times, and
        # five times for the gradient.
        self._given = given.detach()
        self.values, self._norm = paddle_internals.normalise(self._given, SMALLEST_SQUARE)

    def times(self, scale: float) -> paddle.Tensor:
        """Return the values times a number [n, D]."""
        if self._norm is not None:
            return self.values * paddle.scale(self._norm, 0.0, scale)
        return self.values if scale == 1.0 else self.values * scale

    @property
    def one_or_nan(self) -> paddle.Tensor | None:
        """A scalar from Paddle's operators: 1, or NaN if the squared norm of a vector overflows. It is None
        if the kernels have normalised the vectors, or if they are not normalised."""
        return None if self._norm is None else paddle.scale(self._norm.sum(), 0.0, 1.0)

    @functools.cached_property
    def length(self) -> paddle.Tensor:
        """Norms of the original vectors, float32 [n], if they are normalised. For a zero vector, the number
        may be slightly above 0."""
        if self._norm is not None:
            return self._norm.flatten()
        return paddle.where(self._inverse > 0, 1.0 / self._inverse, self._inverse).flatten()

    def gradient(self, grad: paddle.Tensor) -> paddle.Tensor:
        """Convert the gradient with respect to `values` to the gradient with respect to the original
        vectors. Call this method at most once."""
        if self._inverse is not None:
            turned = paddle.empty_like(grad)
            row_kernels.turn_units(grad, self.values, self._inverse, turned)
            return turned
        if self._norm is None:
            return grad
        zero_n1 = self._norm < filled([], (2 * SMALLEST_SQUARE) ** 0.5)
        # A division by an infinite norm gives the gradient 0.
        norm_n1 = paddle.where(zero_n1, filled(self._norm.shape, float("inf")), self._norm)
        return paddle_internals.normalise_gradient(self._given, norm_n1, grad, SMALLEST_SQUARE)


class Block:
    """Computes the similarities between samples and a block's classes, and the gradients.

    Args:
        spec: the head's properties.
        selection: the step's rows.
        start: the block's first row.
        stop: row after the last row of the block.
        dtype: dtype to which the matrix products' inputs are rounded. For the logits, see `logits_dtype`.

    Attributes:
        centres: the block's centres, normalised if there is a margin.
        rounded: the values of `centres`, rounded to `dtype`.
    """

    def __init__(self, spec: HeadSpec, selection: Selection, start: int, stop: int, dtype: str):
        self.selection = selection
        self.sub_centres = spec.sub_centres
        self.start = start
        self.stop = stop
        self.dtype = dtype
        centres = selection.rows("centres", start, stop)
        if spec.sub_centres > 1:
            # Not -1: Paddle cannot infer it if the block has no classes.
            shape = [(stop - start) * spec.sub_centres, selection.bank.width // spec.sub_centres]
            centres = centres.reshape(shape)
        self.centres = Vectors(centres, spec.margin is not None)
        self.rounded = rounded(self.centres.values, dtype)
        self._logits_dtype = logits_dtype(spec, dtype)

    def logits(self, x_ND: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor | None]:
        """Compute the similarities between samples and the block's classes. If the embeddings were multiplied
        by the head's scale before, the results are logits.

        Args:
            x_ND: embeddings [N, D], rounded to `logits_dtype`.

        Returns two tensors: the similarities [N, b], and a tensor [N, b, J] that is 1 for the nearest
        sub-centre and 0 for the others. If J is 1, the second result is None.
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
        """Convert a weight per class to a weight per sub-centre, and round the weights to the block's
        dtype. The nearest sub-centre gets the weight, and the others get 0.

        Args:
            weight_Nb: weights [N, b], see `gradient`.
            nearest_NbJ: second result of `logits`.

        Returns the weights [N, b J].
        """
        if nearest_NbJ is not None:
            weight_Nb = (weight_Nb.unsqueeze(2) * nearest_NbJ).flatten(1)
        return rounded(weight_Nb, self.dtype)

    def gradient(
        self, weight_Nb: paddle.Tensor, share_N1: paddle.Tensor, x_ND: paddle.Tensor
    ) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Compute the gradients with respect to the embeddings and to the block's rows.

        The derivative of a sample's loss with respect to a logit is `share_N1` times `weight_Nb`.

        Args:
            weight_Nb: result of `round_weights`, [N, b J].
            share_N1: one factor per sample, float32 [N, 1].
            x_ND: scaled embeddings, float32 [N, D].

        Returns two gradients. The first is the block's contribution to the gradient with respect to the
        scaled embeddings [N, D]. The second is the gradient with respect to the block's bank rows [b, J D].
        """
        grad = product(weight_Nb, rounded(x_ND * share_N1, self.dtype), transpose_a=True)
        grad = self.centres.gradient(grad).reshape([self.stop - self.start, -1])
        return product(weight_Nb, self.rounded).multiply_(share_N1), grad


class TargetRows:
    """Computes the similarity between each sample and its class, and the gradients.

    Args:
        spec: the head's properties.
        selection: the step's rows.
        x_ND: embeddings, float32 [N, D], normalised if there is a margin.
        column_N: each sample's class, as an index among the selected rows, int64 [N].

    Attributes:
        column_N: the argument with this name.
        plain_N: similarities before a margin is applied, float32 [N].
    """

    def __init__(self, spec: HeadSpec, selection: Selection, x_ND: paddle.Tensor, column_N: paddle.Tensor):
        self.column_N = column_N
        self._nearest_NJ1 = None
        rows_ND = selection.gather("centres", column_N)
        if spec.sub_centres == 1:
            self._centres = Vectors(rows_ND, spec.margin is not None)
            self.plain_N = (self._centres.values * x_ND).sum(axis=1)
        else:
            self._centres = Vectors(rows_ND.reshape([len(x_ND) * spec.sub_centres, -1]), True)
            centre_NJD = self._centres.values.reshape([len(x_ND), spec.sub_centres, -1])
            product_NJ = (centre_NJD * x_ND.unsqueeze(1)).sum(axis=2)
            self.plain_N = product_NJ.max(axis=1)
            self._nearest_NJ1 = F.one_hot(product_NJ.argmax(axis=1), spec.sub_centres).unsqueeze(2)
        if selection.bank.bias:
            self.plain_N = self.plain_N + selection.gather("bias", column_N)

    def gradient(self, dtarget_N: paddle.Tensor, x_ND: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Compute the gradients with respect to the embeddings and to the samples' class rows.

        Args:
            dtarget_N: derivative of each sample's loss with respect to its target logit without margin,
                float32 [N].
            x_ND: scaled embeddings times the factor that `PaddleBackend.backward` is given, float32 [N, D].

        Returns two gradients. The first, [N, D], is with respect to the scaled embeddings, and does not
        include the factor. The second, [N, J D], is with respect to the row of each sample's class, and
        includes the factor.
        """
        weight_N1 = dtarget_N.unsqueeze(1)
        if self._nearest_NJ1 is None:
            return self._centres.values * weight_N1, self._centres.gradient(x_ND * weight_N1)
        weight_NJ1 = weight_N1.unsqueeze(2) * self._nearest_NJ1
        by_row_NJD = x_ND.unsqueeze(1) * weight_NJ1
        by_x_ND = (self._centres.values.reshape(by_row_NJD.shape) * weight_NJ1).sum(axis=1)
        return by_x_ND, self._centres.gradient(by_row_NJD.flatten(0, 1)).reshape([len(x_ND), -1])
