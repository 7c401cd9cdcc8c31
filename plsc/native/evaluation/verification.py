"""Compute distances of pairs and sums of rows by kernels, with the bits of NumPy's wheels on x86-64.

    N rows   D their width   P pairs   T sums

The work is shared by the threads of Paddle's OpenMP team. A program that has not imported Paddle computes by
NumPy, since the threads are Paddle's, whose import takes seconds.
"""

import sys

import numpy as np

from plsc.native import address, library


def usable() -> bool:
    """Tell whether the kernels below can be called."""
    return "paddle" in sys.modules and library() is not None


def squared_distances(unit_ND: np.ndarray, pairs_P2: np.ndarray) -> np.ndarray:
    """Compute the squared L2 distance [P] float64 of each pair of rows, float64. int64 pairs, in range."""
    rows, width = unit_ND.shape
    pairs_P2 = np.ascontiguousarray(pairs_P2, np.int64)
    _check(pairs_P2, rows)
    out_P = np.empty(len(pairs_P2))
    unit, pairs = address(unit_ND, "float64"), address(pairs_P2, "int64", (len(out_P), 2))
    library().plsc_squared_distances(unit, rows, width, pairs, len(out_P), address(out_P, "float64"))
    return out_P


def weighted_sums(
    rows_ND: np.ndarray, order: np.ndarray, weight: np.ndarray, starts: np.ndarray
) -> np.ndarray:
    """Add up rows float32 -> [T, D] float64.

    Args:
        order: int64, the rows, those of one sum side by side.
        weight: float64, the factor of each.
        starts: int64 [T + 1], where each sum starts in `order`; each has a row.
    """
    assert starts[0] >= 0 and starts[-1] <= len(order) == len(weight) and (np.diff(starts) > 0).all()
    _check(order, len(rows_ND))
    sums_TD = np.empty((len(starts) - 1, rows_ND.shape[1]))
    factors = address(order, "int64"), address(weight, "float64"), address(starts, "int64")
    rows, sums = address(rows_ND), address(sums_TD, "float64")
    library().plsc_weighted_sums(rows, rows_ND.shape[1], *factors, len(sums_TD), sums)
    return sums_TD


def _check(index: np.ndarray, rows: int) -> None:
    """Assert that the kernel will read these rows, and no other memory."""
    assert not index.size or (0 <= index.min() and index.max() < rows)
