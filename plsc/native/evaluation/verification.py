"""Compute pair distances and row sums by kernels.

    N rows   D row width   P pairs   T sums

The results equal NumPy's on x86-64 bit for bit, as its wheels compute them. Paddle's OpenMP threads share the
work. If a program has not imported Paddle, callers use NumPy, since importing Paddle takes seconds.
"""

import sys

import numpy as np

from plsc.native import address, library


def usable() -> bool:
    """Return whether this module's kernels can be called."""
    return "paddle" in sys.modules and library() is not None


def squared_distances(unit_ND: np.ndarray, pairs_P2: np.ndarray) -> np.ndarray:
    """Compute each row pair's squared L2 distance: float64 [P].

    Args:
        unit_ND: rows, float64.
        pairs_P2: each pair's row numbers, int64.
    """
    rows, width = unit_ND.shape
    assert pairs_P2.dtype.kind in "iu", pairs_P2.dtype
    pairs_P2 = np.ascontiguousarray(pairs_P2, np.int64)
    _check(pairs_P2, rows)
    out_P = np.empty(len(pairs_P2))
    unit, pairs = address(unit_ND, "float64"), address(pairs_P2, "int64", (len(out_P), 2))
    library().plsc_squared_distances(unit, rows, width, pairs, len(out_P), address(out_P, "float64"))
    return out_P


def weighted_sums(
    rows_ND: np.ndarray, order: np.ndarray, weight: np.ndarray, starts: np.ndarray
) -> np.ndarray:
    """Compute weighted sums of rows: float64 [T, D].

    Args:
        rows_ND: rows, float32.
        order: int64, row numbers. One sum's rows are adjacent.
        weight: float64, each row's factor, in `order`.
        starts: int64 [T + 1], position in `order` where each sum starts, then the last sum's end. No sum
            is empty.
    """
    assert rows_ND.ndim == 2 and starts[0] >= 0 and starts[-1] <= len(order) and (np.diff(starts) > 0).all()
    _check(order, len(rows_ND))
    sums_TD = np.empty((len(starts) - 1, rows_ND.shape[1]))
    factors = address(order, "int64", [len(order)]), address(weight, "float64", [len(order)])
    factors += (address(starts, "int64", [len(sums_TD) + 1]),)
    rows, sums = address(rows_ND), address(sums_TD, "float64")
    library().plsc_weighted_sums(rows, rows_ND.shape[1], *factors, len(sums_TD), sums)
    return sums_TD


def _check(index: np.ndarray, rows: int) -> None:
    """Assert that the kernel will read these rows, and no other memory."""
    assert not index.size or (0 <= index.min() and index.max() < rows)
