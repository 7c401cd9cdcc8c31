"""Run forward and backward of the softmax over a shard as one kernel each. Without kernels: `PaddleBackend`
in heads/backends.py.

    N samples   D embedding size   K classes of the step   P samples whose class is in the shard

Arrays and CPU tensors, float32 and C-contiguous, used in place. Threads are the caller's OpenMP team, each of
which takes blocks of `BLOCK` classes, of twice as many in bfloat16: results do not change from run to run
with the same number of threads. Try it: `pytest tests/native/heads/test_softmax.py`.
"""

import ctypes
from ctypes import c_int64, c_void_p

import numpy as np

from plsc.native import address, library, onednn

BLOCK = 128  # classes whose rows and logits lie in a processor's second-level cache together


def kept_dtype(bfloat16: bool) -> np.dtype:
    """Return the dtype of exponentials that are kept: the bits of bfloat16 where products are rounded to
    it."""
    return np.dtype("uint16" if bfloat16 else "float32")


class _Shard(ctypes.Structure):
    """The arguments of softmax.cpp, in its order."""

    _fields_ = [
        *((name, c_int64) for name in ("samples", "width", "classes", "block", "targets", "bfloat16", "amx")),
        *((name, c_void_p) for name in ("x", "rows", "index", "bias", "target_class", "target_sample")),
        *((name, c_void_p) for name in ("inverse", "exps", "max")),
    ]


class Softmax:
    """Computes one step.

    Args:
        x_ND: times the loss's scale.
        rows_SD, bias_S: of the bank, of which rows index_K take part (None: all K = S).
        class_P, sample_P: the samples whose class is in the shard, by their classes, as the K are numbered.
        exps_KN: where forward leaves the exponentials for backward, of `kept_dtype`; None: computed twice.
        cosine: rows are taken at length 1. bfloat16: the products' inputs are rounded to it.
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
        block = 2 * BLOCK if bfloat16 else BLOCK  # numbers are half as wide
        self.max_bN, self.sum_bN = np.empty((2, -(-classes // block), samples), np.float32)
        inverse_K = np.empty(classes, np.float32) if cosine else None
        # Kept as long as kernels have their addresses.
        self._kept = x_ND, rows_SD, bias_S, index_K, class_P, sample_P, exps_KN, inverse_K
        assert rows_SD.shape[1] == width and len(class_P) == len(sample_P) <= samples
        assert exps_KN is None or exps_KN.shape == (classes, samples)
        by_amx = bfloat16 and onednn.has_amx()
        self._shard = _Shard(samples, width, classes, block, len(class_P), bfloat16, by_amx)
        self._shard.x, self._shard.rows, self._shard.bias = map(address, (x_ND, rows_SD, bias_S))
        self._shard.target_class, self._shard.target_sample, self._shard.index = (
            address(array, "int64") for array in (class_P, sample_P, index_K)
        )
        self._shard.inverse = address(inverse_K)
        self._shard.exps = address(exps_KN, kept_dtype(bfloat16))
        self._shard.max = address(self.max_bN)

    def forward(self) -> tuple[np.ndarray, np.ndarray]:
        """Compute for each block of classes, without the samples' own, the maxima of the logits (-1e30 for
        none), and the sums of exp(logit - maximum), [blocks, N] both."""
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
        """Compute the gradients, with softmax less one-hot for the logits: by x [N, D], by the rows of the
        bank and the bias.

        Args:
            lse_N: logarithm of each sample's whole denominator.
            dtarget_P: gradient by the targets' logits.
            scaled_ND: x times the factors that the gradient by the rows shall have.
            drows_KD, dbias_K: memory for the gradients by rows and bias; the latter without these factors.
        """
        of = self._shard
        grad_ND = np.empty((of.samples, of.width), np.float32)
        assert (dbias_K is None) == (of.bias is None) and (dtarget_P is not None or not of.targets)
        arrays = (
            (lse_N, [of.samples]),
            (dtarget_P, [of.targets]),
            (scaled_ND, [of.samples, of.width]),
            (grad_ND, [of.samples, of.width]),
            (drows_KD, [of.classes, of.width]),
            (dbias_K, [of.classes]),
        )
        library().plsc_softmax_backward(
            ctypes.byref(of), *(address(array, shape=shape) for array, shape in arrays)
        )
        return grad_ND
