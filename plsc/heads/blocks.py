"""Compute one block of classes, from its centres to logits and back, and plan how large a block may be.

    N samples   D embedding size   b classes of the block   J sub-centres of a class (1 but for sub-centre ArcFace)
    P samples whose class is in this rank's shard

With a margin, embeddings and centres are compared by cosine; rows of the bank are never stored normalised.
With J > 1 a bank row holds J centres one after the other, and a class is as near as the nearest of them (Deng
et al., Sub-center ArcFace, ECCV 2020).
"""

from __future__ import annotations

import numpy as np
import paddle

from plsc.heads.bank import Bank
from plsc.heads.kernels import rows as row_kernels
from plsc.utils import kernels
from plsc.utils.tensors import tensor_of

_CACHED_ROWS = 4096  # a block of this many classes stays in the processor's cache between its passes


def bytes_per_class(num_samples: int, width: int, sub_centres: int, dtype: str = "float32") -> int:
    """Compute the bytes that a class of a block takes.

    These are 3 numbers per sample and sub-centre (logits, their exponentials, one temporary) and 4 rows of the
    bank's `width`; where products round what they multiply to a `dtype` of 16 bits, 2 numbers and 2 rows more.
    """
    rounded = 2 * (dtype != "float32")
    return 4 * ((3 + rounded) * num_samples * sub_centres + (4 + rounded) * width)


def plan_blocks(
    num_samples: int, num_classes: int, width: int, sub_centres: int, budget: int, dtype: str = "float32"
) -> tuple[int, bool]:
    """Plan the classes per block, and whether to keep all exponentials, so that the temporaries stay within
    `budget` bytes.

    dtype: that the matrix products round to.
    """
    per_class = bytes_per_class(num_samples, width, sub_centres, dtype)
    kept = 4 * num_samples * num_classes
    least = min(num_classes, 256) * per_class
    keep = kept + least <= budget
    block = (budget - kept * keep) // per_class
    return max(1, min(num_classes, _CACHED_ROWS, block)), keep


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


def product(
    a: paddle.Tensor, b: paddle.Tensor, dtype: str, transpose_a: bool = False, transpose_b: bool = False
) -> paddle.Tensor:
    """Multiply two float32 matrices whose numbers are rounded to `dtype` -> float32.

    dtype: "float32", "bfloat16" or "float16". On a GPU the product itself is of that dtype: it sums in
    float32 and rounds its result once more. A CPU multiplies the rounded numbers in float32.

    float16 has neither numbers above 65504 nor full precision below 6.1e-5, and the gradients of many classes
    are smaller. So both matrices are multiplied by powers of two, which is exact, and the result is divided
    by them: the largest of b is then in [1, 2), and the largest sum of |a| that a result is made of in
    [2^13, 2^14), so that no number of the result is above 2^15.
    """
    if dtype == "float32":
        return paddle.matmul(a, b, transpose_a, transpose_b)
    if dtype == "float16":
        power_a = _power_of_two(a.abs().sum(axis=0 if transpose_a else 1).max())
        power_b = _power_of_two(b.abs().max())
        scaled = _multiply(a * (2.0**13 / power_a), b / power_b, dtype, transpose_a, transpose_b)
        return scaled.multiply_(power_a * power_b * 2.0**-13)
    return _multiply(a, b, dtype, transpose_a, transpose_b)


def _multiply(
    a: paddle.Tensor, b: paddle.Tensor, dtype: str, transpose_a: bool, transpose_b: bool
) -> paddle.Tensor:
    """Multiply matrices rounded to a dtype of 16 bits: in it on a GPU, in float32 on a CPU."""
    a = a.astype(dtype)
    b = b.astype(dtype)
    if not a.place.is_gpu_place():
        return paddle.matmul(a.astype("float32"), b.astype("float32"), transpose_a, transpose_b)
    return paddle.matmul(a, b, transpose_a, transpose_b).astype("float32")


def _power_of_two(x: paddle.Tensor) -> paddle.Tensor:
    """Round a positive float32 down to a power of two by clearing the bits after its exponent; at least
    1e-30's. NaN gives inf."""
    exponent = paddle.full([], 0x7F800000, "int32")  # made on the device: a copy would wait for it
    return paddle.bitwise_and(x.clip(min=1e-30).view("int32"), exponent).view("float32")


class Similarity:
    """Compares embeddings with the selected rows of a bank, by inner products (plus bias) or cosines."""

    def __init__(self, bank: Bank, cosine: bool, sub_centres: int):
        self.bank = bank
        self.cosine = cosine
        self.sub_centres = sub_centres

    def _centres(self, start: int, stop: int) -> tuple[paddle.Tensor, paddle.Tensor | None]:
        """Read the block's centres [b J, D], and 1 / length if they are normalised."""
        centres = self.bank.rows("centres", start, stop)
        if self.sub_centres > 1:
            centres = centres.reshape([(stop - start) * self.sub_centres, -1])
        return unit_rows(centres) if self.cosine else (centres, None)

    def logits(
        self, x_ND: paddle.Tensor, start: int, stop: int, dtype: str = "float32"
    ) -> tuple[paddle.Tensor, paddle.Tensor | None]:
        """Compare x with the block's classes -> similarities [N, b], and which sub-centre was the nearest,
        [N, b, J] 0 or 1 (None for J = 1). dtype: of the product."""
        logit = product(x_ND, self._centres(start, stop)[0], dtype, transpose_b=True)
        if self.sub_centres > 1:
            logit_NbJ = logit.reshape([len(x_ND), stop - start, self.sub_centres])
            nearest_NbJ = paddle.nn.functional.one_hot(logit_NbJ.argmax(axis=2), self.sub_centres)
            return logit_NbJ.max(axis=2), nearest_NbJ
        if self.bank.bias:
            logit.add_(self.bank.rows("bias", start, stop))
        return logit, None

    def targets(self, x_ND: paddle.Tensor, row_P: np.ndarray, column_P: np.ndarray) -> paddle.Tensor:
        """Compare each of these rows of x with its own class, [P]."""
        host = self.bank.host_rows("centres") if x_ND.place.is_cpu_place() and kernels.library() else None
        if host and self.sub_centres == 1:
            rows_SD, index_K = host
            class_P = column_P if index_K is None else index_K[column_P]
            plain_P = tensor_of(row_kernels.pair_products(x_ND, row_P, rows_SD, class_P, self.cosine))
        else:
            plain_P = self._targets(paddle.gather(x_ND, tensor_of(row_P)), tensor_of(column_P))
        return plain_P + self.bank.gather("bias", tensor_of(column_P)) if self.bank.bias else plain_P

    def _targets(self, x_PD: paddle.Tensor, column_P: paddle.Tensor) -> paddle.Tensor:
        centres = self.bank.gather("centres", column_P)
        if self.sub_centres > 1:
            units = unit_rows(centres.reshape([len(x_PD) * self.sub_centres, -1]))[0]
            products = units.reshape([len(x_PD), self.sub_centres, -1]) * x_PD.unsqueeze(1)
            return products.sum(axis=2).max(axis=1)
        return (x_PD * (unit_rows(centres)[0] if self.cosine else centres)).sum(axis=1)

    def gradient(
        self,
        dlogit_Nb: paddle.Tensor,
        nearest_NbJ: paddle.Tensor | None,
        x_ND: paddle.Tensor,
        start: int,
        stop: int,
        dtype: str = "float32",
    ) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Compute the block's part of the gradient by the embeddings [N, D], and the gradient by its bank
        rows [b, J D]. dtype: of the two products.

        Both lack the factors of the loss's mean and scale, unless `x_ND` has them: then the second has them,
        too.
        """
        if nearest_NbJ is not None:
            dlogit_Nb = (dlogit_Nb.unsqueeze(2) * nearest_NbJ).flatten(1)
        centres, scale = self._centres(start, stop)
        grad = product(dlogit_Nb, x_ND, dtype, transpose_a=True)
        if self.cosine:
            grad = unit_rows_gradient(grad, centres, scale)
        return product(dlogit_Nb, centres, dtype), grad.reshape([stop - start, -1])
