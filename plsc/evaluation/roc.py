"""Compute the exact ROC from scored pairs, and rates from it.

The ROC is computed from the sorted similarities and not from a grid, so no rate depends on which thresholds
are tried. Try it:

    roc_curve(np.array([0.9, 0.2, 0.1]), np.array([True, True, False])).tar
"""

from dataclasses import dataclass

import numpy as np

FARS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # false accept rates at which TAR is reported


@dataclass(frozen=True)
class Roc:
    """The exact ROC. If the pairs with similarity >= threshold[k] are accepted, the rates are far[k] and
    tar[k].

    There are K points for K - 1 distinct similarities. The first is (0, 0) at the threshold inf, and the last
    is (1, 1) at the lowest similarity.

    Attributes:
        far, tar: float64 [K], false and true accept rate.
        threshold: float64 [K], cosines, descending.
    """

    far: np.ndarray
    tar: np.ndarray
    threshold: np.ndarray

    def area(self) -> float:
        """Compute the area under the curve (AUC). A tie between a same and a different pair counts half."""
        return float(np.sum(np.diff(self.far) * (self.tar[1:] + self.tar[:-1]) / 2))


def roc_curve(similarity: np.ndarray, same: np.ndarray) -> Roc:
    """Compute the exact ROC. Equal similarities make one point.

    Args:
        similarity: float64 [P], cosines.
        same: bool [P], whether a pair shows one class. At least one pair must be different. If no pair is the
            same, `tar` is 0.
    """
    # Sorting the numbers takes a twentieth of np.argsort's time. Arrays are changed in place, because
    # for 15 million pairs allocating new memory takes longer than the arithmetic.
    rising = -similarity
    rising.sort()
    ends = np.ones(len(rising), bool)  # the last pair for each distinct similarity
    np.not_equal(rising[1:], rising[:-1], out=ends[:-1])
    last = np.flatnonzero(ends)
    far, tar, threshold = np.zeros((3, len(last) + 1))
    threshold[0] = -np.inf
    np.take(rising, last, out=threshold[1:], mode="clip")  # the default mode would copy
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
    """Compute the rate at which FAR = FRR, by linear interpolation between the two points around it.

    Args:
        far, tar: float64 [K], the ROC's points, from (0, 0) to (1, 1).
    """
    gap = far - (1 - tar)  # rises from -1 to 1
    after = int(np.argmax(gap >= 0))
    before = after - 1
    return far[before] - gap[before] / (gap[after] - gap[before]) * (far[after] - far[before])


def tar_at_far(far: np.ndarray, tar: np.ndarray, limit: float) -> float:
    """Return the highest TAR among the points whose FAR does not exceed `limit`, without interpolation.

    Args:
        far, tar: float64 [K], the ROC's points, from (0, 0) to (1, 1).
        limit: the FAR.
    """
    return tar[np.count_nonzero(far <= limit) - 1]


def threshold_at_far(roc: Roc, limit: float) -> float:
    """Return the cosine above which pairs may be accepted so that FAR <= `limit`, which is below 1.

    It is the middle between the last similarity that may be accepted and the next lower one.
    """
    first = np.count_nonzero(roc.far <= limit)  # the first point that must not be accepted
    refused, accepted = float(roc.threshold[first]), float(roc.threshold[first - 1])
    return refused if np.isinf(accepted) else middle(refused, accepted)


def middle(low: float, high: float) -> float:
    """Return the middle of low < high. It is below `high` even if the two are adjacent floats."""
    between = (low + high) / 2
    return between if between < high else low


def needed(rate: float) -> int:
    """Return how many negatives a false accept rate needs.

    With fewer negatives, the rate does not allow even one false accept.
    """
    return int(np.ceil(1 / rate - 1e-6))  # rounding may make 1 / 1e-3 a little larger than 1000
