"""Run the softmax over a shard forward and backward, with one kernel each.

    N samples   D embedding size   K classes in the step   P samples whose class is in the shard

If there are no kernels, `PaddleBackend` in heads/backends.py does this work. Arrays and CPU tensors are
float32, C-contiguous and used in place. Each OpenMP thread of the caller takes blocks with `BLOCK`
classes, or twice as many in bfloat16. Results are equal in all runs with the same thread count.
Try it: `pytest tests/native/heads/test_softmax.py`.
"""

import ctypes
from ctypes import c_int64, c_void_p

import numpy as np

from plsc.native import address, library, onednn, optional_address

BLOCK = 128  # classes whose rows and logits fit into a processor's second-level cache together


def kept_dtype(bfloat16: bool) -> np.dtype:
    """Return the dtype in which forward keeps the exponentials for backward.

    If products are in bfloat16, it is uint16, which contains bfloat16's bits.
    """
    return np.dtype("uint16" if bfloat16 else "float32")


class _Shard(ctypes.Structure):
    """The arguments for the functions in softmax.cpp, in their order there."""

    _fields_ = [
        *((name, c_int64) for name in ("samples", "width", "classes", "block", "targets", "bfloat16", "amx")),
        *((name, c_void_p) for name in ("x", "rows", "index", "bias", "target_class", "target_sample")),
        *((name, c_void_p) for name in ("inverse", "exps", "max")),
    ]


class Softmax:
    """Computes one step's softmax.

    Args:
        x_ND: embeddings, multiplied by the loss's scale.
        rows_SD: the bank's rows.
        bias_S: the bank's biases, or None.
        index_K: row numbers of this step, int64. None means all rows, K = S.
        class_P: the P samples' classes, int64, in ascending order. They are
            numbered as the K rows are.
        sample_P: those samples' numbers, int64.
        exps_KN: memory in which forward keeps the exponentials for backward, in `kept_dtype`. If it is None,
            backward computes them again.
        cosine: whether rows are scaled to length 1.
        bfloat16: whether inputs to products are rounded to bfloat16.
    """

    def __init__(
        self,
        x_ND: np.ndarray,
        rows_SD: np.ndarray,
        bias_S: np.ndarray | None,
        index_K: np.ndarray | None,
        class_P: np.ndarray,
        sample_P: np.ndarray,
        exps_KN: np.ndarray | None,
        *,
        cosine: bool,
        bfloat16: bool,
    ):
        samples, width = x_ND.shape
        classes = len(rows_SD if index_K is None else index_K)
        block = 2 * BLOCK if bfloat16 else BLOCK  # bfloat16 numbers are half as wide
        self.max_bN, self.sum_bN = np.empty((2, -(-classes // block), samples), np.float32)
        inverse_K = np.empty(classes, np.float32) if cosine else None
        # The kernels have these arrays' addresses, so they must stay alive.
        self._kept = x_ND, rows_SD, bias_S, index_K, class_P, sample_P, exps_KN, inverse_K
        assert list(rows_SD.shape[1:]) == [width] and len(class_P) <= samples
        for numbers, count in ((class_P, classes), (sample_P, samples), (index_K, len(rows_SD))):
            assert numbers is None or not len(numbers) or 0 <= numbers.min() <= numbers.max() < count
        assert (np.diff(class_P) >= 0).all()
        by_amx = bfloat16 and onednn.has_amx()
        self._shard = _Shard(samples, width, classes, block, len(class_P), bfloat16, by_amx)
        self._shard.x, self._shard.rows = address(x_ND), address(rows_SD)
        self._shard.bias = optional_address(bias_S, shape=[len(rows_SD)])
        self._shard.target_class, self._shard.target_sample = (
            address(array, "int64", [len(class_P)]) for array in (class_P, sample_P)
        )
        self._shard.index = optional_address(index_K, "int64", [classes])
        self._shard.inverse = optional_address(inverse_K)
        self._shard.exps = optional_address(exps_KN, kept_dtype(bfloat16), (classes, samples))
        self._shard.max = address(self.max_bN)

    def forward(self) -> tuple[np.ndarray, np.ndarray]:
        """Compute the maximum logit and the sum of exp(logit - maximum) for each class block and sample.

        A sample's own class is excluded. If a block has no other class, its maximum is -1e30.

        Returns the maxima and the sums, [blocks, N] each.
        """
        library().plsc_softmax_forward(ctypes.byref(self._shard), address(self.sum_bN))
        return self.max_bN, self.sum_bN

    def backward(
        self,
        lse_N: np.ndarray,
        dtarget_P: np.ndarray,
        scaled_ND: np.ndarray,
        drows_KD: np.ndarray,
        dbias_K: np.ndarray | None,
    ) -> np.ndarray:
        """Compute the gradients with respect to x, the bank's rows and the bias. Return the first,
        [N, D].

        The gradient with respect to the logits is the softmax minus the one-hot label.

        Args:
            lse_N: logarithm of each sample's whole softmax denominator.
            dtarget_P: gradient with respect to the samples' own logits.
            scaled_ND: x, multiplied by the factors that the row gradient needs.
            drows_KD: memory for the row gradient.
            dbias_K: memory for the bias gradient, which does not include these factors, or None.
        """
        of = self._shard
        grad_ND = np.empty((of.samples, of.width), np.float32)
        assert (dbias_K is None) == (of.bias is None) and (dtarget_P is not None or not of.targets)
        library().plsc_softmax_backward(
            ctypes.byref(of),
            address(lse_N, shape=[of.samples]),
            optional_address(dtarget_P, shape=[of.targets]),
            address(scaled_ND, shape=[of.samples, of.width]),
            address(grad_ND),
            address(drows_KD, shape=[of.classes, of.width]),
            optional_address(dbias_K, shape=[of.classes]),
        )
        return grad_ND
