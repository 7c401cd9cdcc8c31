"""Normalise, multiply, gather and update a float32 matrix's rows in host memory, by kernels.

    S rows in the matrix   K selected rows   D row width

An argument `index_K` contains the numbers of the selected rows, int64 [K]. None selects all rows.
Arrays and CPU tensors are C-contiguous and used in place. The caller's OpenMP threads
(Global.threads) share the work. If there are no kernels, callers use Paddle's operators.
"""

import math
from collections.abc import Sequence

import numpy as np

from plsc.native import address, library, optional_address


def unit_rows(rows_KD, unit_KD, inverse_K) -> None:
    """Write the rows, scaled to length 1, into `unit_KD`, and 1 / length into `inverse_K`.

    For a zero row, both are 0.
    """
    assert inverse_K.size == len(rows_KD)
    unit, inverse = address(unit_KD, shape=rows_KD.shape), address(inverse_K)
    library().plsc_unit_rows(address(rows_KD), *_size(rows_KD), unit, inverse)


def turn_units(grad_KD, unit_KD, factor_K, out_KD) -> None:
    """Compute (grad - (grad . unit) unit) * factor for each row, and write it into `out_KD`.

    If factor is 1 / length, this turns the gradient with respect to the unit rows into the gradient with
    respect to the rows.
    """
    unit, out = (address(array, shape=grad_KD.shape) for array in (unit_KD, out_KD))
    assert factor_K.size == len(grad_KD)
    library().plsc_turn_units(address(grad_KD), unit, address(factor_K), *_size(grad_KD), out)


def gather(rows_SD: np.ndarray, index_K: np.ndarray, out_KD: np.ndarray) -> None:
    """Copy the rows with the numbers `index_K` into `out_KD`. The rows may also be single numbers, [S]."""
    _check(rows_SD, index_K, out_KD)
    index = address(index_K, "int64", [len(out_KD)])
    library().plsc_gather(address(rows_SD), index, *_size(out_KD), address(out_KD))


def update(
    rule: str,
    values_SD: np.ndarray,
    moments: Sequence[np.ndarray],
    index_K: np.ndarray | None,
    grads_KD: np.ndarray,
    numbers: tuple[float, ...],
) -> None:
    """Update rows and their optimizer state in place by a rule, with w the values and g the gradients.

        momentum  (lr, mu, decay, nesterov): v <- mu v + g + decay w;  w <- w - lr v, with nesterov
                  w <- w - lr (g + decay w + mu v)
        lars      (rate, mu, decay): v <- mu v + rate (g + decay w);  w <- w - v
        adamw     (beta1, rest1, beta2, rest2, rate, root, epsilon, shrink): m <- beta1 m + rest1 g;
                  v <- beta2 v + rest2 g^2;  w <- w - shrink w - rate m / (root sqrt(v) + epsilon)

    All other rows stay unchanged. The rows may also be single numbers, [S].

    Args:
        rule: "momentum", "lars" or "adamw".
        values_SD: w.
        moments: v for momentum and lars; m and v for adamw. They are shaped like `values_SD`.
        index_K: row numbers, all different. None selects all rows.
        grads_KD: g.
        numbers: the numbers in parentheses above.
    """
    _check(values_SD, index_K, grads_KD)
    assert all(list(values_SD.shape) == list(each.shape) for each in moments)
    arrays = map(address, (values_SD, *moments))
    index = optional_address(index_K, "int64", [len(grads_KD)])
    rows = index, address(grads_KD), *_size(grads_KD)
    getattr(library(), f"plsc_{rule}")(*arrays, *rows, *numbers)


def pair_products(x_ND, left_P: np.ndarray, rows_SD, right_P: np.ndarray, unit: bool) -> np.ndarray:
    """Compute inner products of row left_P of x and row right_P of the matrix for each pair: float32 [P].

    Args:
        x_ND: first rows.
        left_P: each pair's first row, int64.
        rows_SD: second rows.
        right_P: each pair's second row, int64.
        unit: whether the second rows are scaled to length 1. A zero row stays zero.
    """
    out_P = np.empty(len(left_P), np.float32)
    assert x_ND.ndim == rows_SD.ndim == 2 and x_ND.shape[1] == rows_SD.shape[1]
    assert not len(left_P) or (0 <= left_P.min() and left_P.max() < len(x_ND))
    assert not len(right_P) or (0 <= right_P.min() and right_P.max() < len(rows_SD))
    left, right = (address(numbers, "int64", out_P.shape) for numbers in (left_P, right_P))
    sizes = len(out_P), x_ND.shape[1]
    library().plsc_pair_products(address(x_ND), left, address(rows_SD), right, *sizes, unit, address(out_P))
    return out_P


def sum_of_squares(rows_KD) -> float:
    """Return the sum of all squares.

    It is not finite if a number is not finite, or if a square is too large for float32.
    """
    return library().plsc_sum_of_squares(address(rows_KD), math.prod(rows_KD.shape))


def _check(rows_SD: np.ndarray, index_K: np.ndarray | None, rows_KD: np.ndarray) -> None:
    """Assert that a kernel will read and write only these arrays, and no other memory."""
    count = len(rows_KD)
    assert list(rows_SD.shape[1:]) == list(rows_KD.shape[1:])
    assert count == (len(rows_SD) if index_K is None else len(index_K))
    assert index_K is None or not count or (index_K.min() >= 0 and index_K.max() < len(rows_SD))


def _size(rows_KD) -> tuple[int, int]:
    assert len(rows_KD.shape) in (1, 2)
    return len(rows_KD), rows_KD.shape[1] if len(rows_KD.shape) == 2 else 1
