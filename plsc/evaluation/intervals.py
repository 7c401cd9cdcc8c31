"""How far to trust a rate: 95 % confidence intervals, by the bootstrap over pairs, and Wilson's for plain shares.

The bootstrap draws as many pairs as there are, with replacement, 1,000 times, and takes the middle 95 % of what each draw
gives (Efron's percentile interval). All that a rate asks of a pair is the cell of a table that it falls into, so a draw is a
table of counts. Above EXACT_PAIRS the counts are drawn directly, as Poisson numbers with the cell's count as mean: the
same but for the total, whose spread is then negligible. Always the same seed: equal pairs give equal intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

RESAMPLES = 1000
FEWER_RESAMPLES = 200  # of more than EXACT_PAIRS pairs
EXACT_PAIRS = 20_000
LEVEL = 0.95
IN_BRACKETS = "in brackets"  # the label of the line that says what the brackets are
_QUANTILES = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
_Z = 1.959964  # the normal distribution's quantile of LEVEL
_SEED = 20180901
_BLOCK = 1 << 20  # numbers at a time


def resamples(pairs: int) -> int:
    """How many resamples are drawn of so many pairs."""
    return RESAMPLES if pairs <= EXACT_PAIRS else FEWER_RESAMPLES


def bootstrap(counts: np.ndarray, rates: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Intervals [2, M] float64 of M rates; a draw in which a rate is NaN (no negative drawn, say) does not count for it.

    counts: int64 [...], how many pairs are in each cell. rates: resampled counts [r, ...] -> float64 [r, M].
    """
    found = np.concatenate([rates(drawn.reshape(-1, *counts.shape)) for drawn in _draws(counts.ravel())])
    return np.nanquantile(found, _QUANTILES, axis=0)


def _draws(counts: np.ndarray) -> Iterator[np.ndarray]:
    """All resamples of counts [K], some at a time: int64 [r, K]."""
    rng, cells, pairs = np.random.default_rng(_SEED), len(counts), int(counts.sum())
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


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's score interval of a share of `count` independent trials (Wilson 1927); never empty, unlike the
    bootstrap's of a share of 1."""
    centre = (share + _Z**2 / (2 * count)) / (1 + _Z**2 / count)
    half = _Z / (1 + _Z**2 / count) * np.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    # The bounds of a share of 0 and 1 are 0 and 1, which rounding would miss.
    return float(max(0.0, min(share, centre - half))), float(min(1.0, max(share, centre + half)))


def percent(rate: float) -> str:
    """A rate as people read it: 98.27 %."""
    return f"{100 * rate:.2f} %"


def with_interval(rate: float, interval: tuple[float, float] | None) -> str:
    """98.27 % (97.90 to 98.61)."""
    if interval is None:
        return percent(rate)
    return f"{percent(rate)} ({100 * interval[0]:.2f} to {100 * interval[1]:.2f})"
