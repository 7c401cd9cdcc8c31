"""Rows of a float32 matrix in host memory: their lengths, fetching and writing them back, momentum SGD. Kernel or numpy, one call.

    S rows of the matrix   K of them meant, by their numbers int64 [K] or, with None, all (K = S)   D their width

Arrays are C-contiguous and used in place: a view of a CPU tensor is as good as an array. With kernels the work is shared by the
threads of the caller's OpenMP team (Global.threads). Try it: `pytest tests/kernels/test_rows.py`.
"""

from __future__ import annotations

import numpy as np

from plsc.kernels import library


def inverse_norms(rows_KD: np.ndarray) -> np.ndarray:
    """1 / length of each row, [K]; 0 of a zero row."""
    inverse_K = np.empty(len(rows_KD), np.float32)
    if native := library():
        native.plsc_inverse_norms(address(rows_KD), *rows_KD.shape, address(inverse_K))
        return inverse_K
    square_K = np.einsum("kd,kd->k", rows_KD, rows_KD)
    return np.divide(1.0, np.sqrt(square_K), out=square_K, where=square_K != 0)


def gather(rows_SD: np.ndarray, index_K: np.ndarray, out_KD: np.ndarray) -> None:
    """Copy these rows, side by side, into `out_KD`."""
    if native := library():
        _check(rows_SD, index_K, out_KD)
        native.plsc_gather(address(rows_SD), address(index_K, np.int64), *out_KD.shape, address(out_KD))
    else:
        np.take(rows_SD, index_K, axis=0, out=out_KD)


def scatter(rows_SD: np.ndarray, index_K: np.ndarray, from_KD: np.ndarray) -> None:
    """The way back. No row may be meant twice."""
    if native := library():
        _check(rows_SD, index_K, from_KD)
        native.plsc_scatter(address(rows_SD), address(index_K, np.int64), *from_KD.shape, address(from_KD))
    else:
        rows_SD[index_K] = from_KD


def momentum(
    values_SD: np.ndarray,
    momenta_SD: np.ndarray,
    index_K: np.ndarray | None,
    grads_KD: np.ndarray,
    lr: float,
    mu: float,
    decay: float,
) -> None:
    """v <- mu v + g + decay w;  w <- w - lr v, on these rows, of which none is meant twice; the others keep their bytes."""
    if native := library():
        _check(values_SD, index_K, grads_KD)
        assert values_SD.shape == momenta_SD.shape
        index = address(index_K, np.int64)
        native.plsc_momentum(
            address(values_SD), address(momenta_SD), index, address(grads_KD), *grads_KD.shape, lr, mu, decay
        )
        return
    rows = slice(None) if index_K is None else index_K
    value_KD = values_SD[rows]
    momentum_KD = np.float32(mu) * momenta_SD[rows] + (grads_KD + np.float32(decay) * value_KD)
    momenta_SD[rows] = momentum_KD
    values_SD[rows] = value_KD - np.float32(lr) * momentum_KD


def _check(rows_SD: np.ndarray, index_K: np.ndarray | None, rows_KD: np.ndarray) -> None:
    """What numpy would refuse, a kernel must not walk into."""
    count, width = rows_KD.shape
    assert rows_SD.shape[1] == width and count == (len(rows_SD) if index_K is None else len(index_K))
    assert index_K is None or not count or (index_K.min() >= 0 and index_K.max() < len(rows_SD))


def address(array: np.ndarray | None, dtype: type = np.float32) -> int | None:
    """For a kernel; null for None."""
    if array is None:
        return None
    assert array.dtype == dtype and array.flags.c_contiguous
    return array.ctypes.data
