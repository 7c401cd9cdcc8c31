"""Compute the exact ROC of scored pairs, from the sorted similarities instead of a grid, and rates from it.

Try it:

    roc_curve(np.array([0.9, 0.2, 0.1]), np.array([True, True, False])).tar
"""

from dataclasses import dataclass

import numpy as np

FARS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # the false accept rates at which TAR is reported


@dataclass(frozen=True)
class Roc:
    """The exact ROC: accepting the pairs with similarity >= threshold[k] gives far[k] and tar[k].

    All [K] float64, K - 1 distinct similarities, from (0, 0) at threshold inf to (1, 1) at the lowest.
    """

    far: np.ndarray
    tar: np.ndarray
    threshold: np.ndarray

    def area(self) -> float:
        """Compute the area under the curve (AUC), equal similarities counted half."""
        return float(np.sum(np.diff(self.far) * (self.tar[1:] + self.tar[:-1]) / 2))


def roc_curve(similarity: np.ndarray, same: np.ndarray) -> Roc:
    """Compute the exact ROC of similarities [P] and same [P] bool. Equal ones are one point.

    There must be different pairs; without same pairs `tar` is 0.
    """
    # To sort the numbers takes a twentieth of the time of np.argsort. Arrays are changed in place, since for
    # 15 million pairs new memory takes longer than the arithmetic.
    rising = -similarity
    rising.sort()
    ends = np.ones(len(rising), bool)  # the last pair of each distinct similarity
    np.not_equal(rising[1:], rising[:-1], out=ends[:-1])
    last = np.flatnonzero(ends)
    far, tar, threshold = np.zeros((3, len(last) + 1))
    threshold[0] = -np.inf
    np.take(rising, last, out=threshold[1:], mode="clip")  # another mode copies
    place = np.searchsorted(threshold[1:], np.sort(-similarity[same]))
    true_accepts = np.bincount(place, minlength=len(last))
    np.cumsum(true_accepts, out=true_accepts)
    false_accepts = last
    false_accepts += 1
    false_accepts -= true_accepts
    np.divide(false_accepts, false_accepts[-1], out=far[1:])
    np.divide(true_accepts, max(1, true_accepts[-1]), out=tar[1:])
    return Roc(far, tar, threshold=np.negative(threshold, out=threshold))


def equal_error_rate(far: np.ndarray, tar: np.ndarray) -> float:
    """Compute the rate at which FAR = FRR, on the straight line between the two points around it."""
    gap = far - (1 - tar)  # rises from -1 to 1
    after = int(np.argmax(gap >= 0))
    before = after - 1
    return far[before] - gap[before] / (gap[after] - gap[before]) * (far[after] - far[before])


def tar_at_far(far: np.ndarray, tar: np.ndarray, limit: float) -> float:
    """Find the highest TAR among the points whose FAR does not exceed `limit`, not interpolated."""
    return tar[np.count_nonzero(far <= limit) - 1]


def threshold_at_far(roc: Roc, limit: float) -> float:
    """Find the cosine above which accepting keeps FAR <= `limit` < 1: the middle between the last pair that
    may be accepted and the next."""
    first = np.count_nonzero(roc.far <= limit)  # that must not be accepted
    refused, accepted = float(roc.threshold[first]), float(roc.threshold[first - 1])
    return refused if np.isinf(accepted) else middle(refused, accepted)


def middle(low: float, high: float) -> float:
    """Compute the middle of low < high, below `high` even if they are adjacent floats."""
    between = (low + high) / 2
    return between if between < high else low


def needed(rate: float) -> int:
    """Compute the number of negatives for a rate: with fewer, not even one false accept is allowed."""
    return int(np.ceil(1 / rate - 1e-6))  # 1 / 1e-3 may come out a little above 1000
