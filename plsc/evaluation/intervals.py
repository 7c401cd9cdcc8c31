"""Compute 95 % confidence intervals of rates: with the bootstrap over identities, or Wilson's for plain
shares.

One person's pictures are similar. If 6,000 pairs or probes show 30 people, the sample has 30 independent
members. The identities are therefore drawn with replacement. A probe or a same pair counts as often as its
identity was drawn. A different pair's count is the product of its two identities' counts. This is
the pigeonhole bootstrap (Owen 2007, The Annals of Applied Statistics 1(2)), whose intervals tend to be too
wide. The interval is the middle 95 % of all draws' rates. The seed is fixed, so equal pairs give equal
intervals. Try it:

    wilson(0.98, 300)
"""

from collections.abc import Iterator

import numpy as np

RESAMPLES = 1000
FEWER_RESAMPLES = 200  # for more than MANY_PAIRS pairs
MANY_PAIRS = 20_000
LEAST_PEOPLE = 10  # with fewer, a bootstrap's intervals mean nothing
IN_BRACKETS = "in brackets"  # label for the line that explains the brackets
QUANTILES = (0.025, 0.975)
_Z = 1.959964  # the normal distribution's 97.5 % quantile
_SEED = 20180901


def resamples(pairs: int) -> int:
    """Choose how many resamples to draw for so many pairs."""
    return RESAMPLES if pairs <= MANY_PAIRS else FEWER_RESAMPLES


def resampled(identities: np.ndarray) -> Iterator[np.ndarray]:
    """Yield for each resample how often it contains each pair, int64 [P].

    Args:
        identities: int64 [P, 2], each pair's two identities, numbered from 0 without gaps.
    """
    first, second = identities.T
    for times in drawn(int(identities.max()) + 1, resamples(len(identities))):
        yield times[first] * np.where(first == second, 1, times[second])


def drawn(count: int, resamples: int) -> Iterator[np.ndarray]:
    """Yield for each resample how often it contains each of `count` identities, int64 [count]."""
    rng = np.random.default_rng(_SEED)
    for _ in range(resamples):
        yield np.bincount(rng.integers(0, count, count), minlength=count)


def wilson(share: float, count: int) -> tuple[float, float]:
    """Compute Wilson's score interval (Wilson 1927).

    It is never empty. The bootstrap's interval is empty if the share is 0 or 1.

    Args:
        share: share of successful trials, 0 to 1.
        count: how many independent trials.
    """
    centre = (share + _Z**2 / (2 * count)) / (1 + _Z**2 / count)
    half = _Z / (1 + _Z**2 / count) * np.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    # A share of 0 has the lower bound 0, and a share of 1 the upper bound 1. Rounding errors would miss them.
    return float(max(0.0, min(share, centre - half))), float(min(1.0, max(share, centre + half)))


def percent(rate: float) -> str:
    """Format a rate for people: 98.27 %."""
    return f"{100 * rate:.2f} %"


def with_interval(rate: float, interval: tuple[float, float] | None) -> str:
    """Format a rate and its interval: 98.27 % (97.90 to 98.61)."""
    if interval is None:
        return percent(rate)
    return f"{percent(rate)} ({100 * interval[0]:.2f} to {100 * interval[1]:.2f})"
