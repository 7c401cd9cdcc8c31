"""Compute 95 % confidence intervals of rates: by the bootstrap over identities or pairs, and Wilson's for
plain shares.

The bootstrap draws as many pairs as there are, with replacement, 1,000 times, and takes the middle 95 % of
the rates of the draws (Efron's percentile interval). A rate depends only on the cell of a table that each
pair falls into, so a draw is a table of counts. Above EXACT_PAIRS the counts are drawn directly, as Poisson
numbers with the cell's count as mean: the same but for the total, whose spread is then negligible. The seed
is fixed: equal pairs give equal intervals.

Pairs of one person are alike: of 6,000 pairs of 30 people, the 30 people are the sample. Where the identities
are known, they are drawn instead: a same pair counts as often as its identity was drawn, a different pair the
product of its two (the pigeonhole bootstrap of Owen 2007, The Annals of Applied Statistics 1(2), which errs
on the wide side).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator

import numpy as np

RESAMPLES = 1000
FEWER_RESAMPLES = 200  # of more than EXACT_PAIRS pairs
EXACT_PAIRS = 20_000
LEVEL = 0.95
LEAST_PEOPLE = 10  # with fewer, the intervals of a bootstrap mean nothing
IN_BRACKETS = "in brackets"  # label of the line that explains the brackets
_QUANTILES = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
Z = 1.959964  # the normal distribution's quantile of LEVEL
_SEED = 20180901
_BLOCK = 1 << 20  # numbers at a time


def resamples(pairs: int) -> int:
    """Choose the number of resamples for so many pairs."""
    return RESAMPLES if pairs <= EXACT_PAIRS else FEWER_RESAMPLES


def bootstrap(counts: np.ndarray, rates: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Compute intervals [2, M] float64 of M rates; a draw in which a rate is NaN (no negative drawn, say)
    does not count for it.

    counts: int64 [...], the pairs in each cell. rates: resampled counts [r, ...] -> float64 [r, M].
    """
    return _quantiles(_draws(counts.ravel()), counts.shape, rates)


def bootstrap_identities(
    cell: np.ndarray,
    shape: tuple[int, ...],
    identities: np.ndarray,
    rates: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Compute intervals as `bootstrap`, over the identities.

    cell: each pair's cell of a table of this shape, [P]. identities: the two of each pair, int64 [P, 2], from
    0 on without gaps.
    """
    return _quantiles(_draws_of_identities(cell, math.prod(shape), identities), shape, rates)


def bootstrap_groups(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Compute intervals [2, M] float64 of the means of values [N, M], whose groups, such as identities, are
    drawn: int64 [N]."""
    _, group = np.unique(group, return_inverse=True)
    groups = int(group.max()) + 1
    sums = np.stack([np.bincount(group, column, groups) for column in values.T], axis=1)
    sizes = np.bincount(group)
    rng = np.random.default_rng(_SEED)
    means = []
    for _ in range(resamples(len(values))):
        times = np.bincount(rng.integers(0, groups, groups), minlength=groups)
        means.append(times @ sums / (times @ sizes))
    return np.quantile(means, _QUANTILES, axis=0)


def _quantiles(draws: Iterator[np.ndarray], shape: tuple[int, ...], rates: Callable) -> np.ndarray:
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        # A draw without a positive pair has no TAR; where no draw has one, the interval is NaN.
        warnings.filterwarnings("ignore", "All-NaN slice", RuntimeWarning)
        resampled = np.concatenate([rates(drawn.reshape(-1, *shape)) for drawn in draws])
        return np.nanquantile(resampled, _QUANTILES, axis=0)


def _draws(counts: np.ndarray) -> Iterator[np.ndarray]:
    """Yield all resamples of counts [K], some at a time: int64 [r, K]."""
    rng = np.random.default_rng(_SEED)
    cells = len(counts)
    pairs = int(counts.sum())
    exact, total = pairs <= EXACT_PAIRS, resamples(pairs)
    at_once = max(1, _BLOCK // max(cells, pairs if exact else 0))
    cell = np.repeat(np.arange(cells), counts) if exact else None
    for start in range(0, total, at_once):
        rows = min(at_once, total - start)
        if not exact:
            yield rng.poisson(counts, (rows, cells))
            continue
        drawn = cell[rng.integers(0, pairs, (rows, pairs))] + cells * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * cells).reshape(rows, cells)


def _draws_of_identities(cell: np.ndarray, cells: int, identities: np.ndarray) -> Iterator[np.ndarray]:
    """Yield all resamples of the identities, some at a time: float64 [r, K], whole numbers."""
    rng = np.random.default_rng(_SEED)
    count = int(identities.max()) + 1
    total = resamples(len(cell))
    first, second = identities.T
    one = first == second
    at_once = max(1, _BLOCK // max(cells, len(cell)))
    for start in range(0, total, at_once):
        drawn = np.empty((min(at_once, total - start), cells))
        for row in drawn:
            times = np.bincount(rng.integers(0, count, count), minlength=count)
            weight = times[first] * np.where(one, 1, times[second])
            row[:] = np.bincount(cell, weight, cells)
        yield drawn


def wilson(share: float, count: int) -> tuple[float, float]:
    """Compute Wilson's score interval of a share of `count` independent trials (Wilson 1927); never empty,
    unlike the bootstrap's of a share of 1."""
    centre = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    half = Z / (1 + Z**2 / count) * np.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    # The bounds of a share of 0 and 1 are 0 and 1, which rounding would miss.
    return float(max(0.0, min(share, centre - half))), float(min(1.0, max(share, centre + half)))


def percent(rate: float) -> str:
    """Format a rate for people: 98.27 %."""
    return f"{100 * rate:.2f} %"


def with_interval(rate: float, interval: tuple[float, float] | None) -> str:
    """Format a rate and its interval: 98.27 % (97.90 to 98.61)."""
    if interval is None:
        return percent(rate)
    return f"{percent(rate)} ({100 * interval[0]:.2f} to {100 * interval[1]:.2f})"
