"""Fit what a cosine means on scored pairs: P(same), its error on pairs that were not fitted, and thresholds
with intervals.

P(same) is a logistic regression of `same` on the cosine and its square, on smoothed targets (Platt 1999),
kept from falling. The square makes up for different pairs whose cosines spread less than those of same pairs;
docs/labbook.md has the comparison with a logistic without it and with isotonic regression.

Pairs are counted in cells of equal width between the lowest and the highest cosine, so that time and memory
of a fit do not depend on how many there are. Try it:

    fit_pairs(np.array([0.9, 0.7, 0.3, 0.1]), np.array([True, True, False, False])).log_odds

Letters: P pairs, C cells, K knots, F folds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plsc.evaluation.intervals import Z, percent
from plsc.evaluation.roc import Roc, needed, threshold_at_far
from plsc.utils.calibration import Threshold

METHOD = "logistic in the cosine and its square"
BINS = 15  # of P(same), equally wide, as Guo et al. 2017 (arXiv:1706.04599) have them
FOLDS = 10
_CELLS = 4096
_KNOTS = 65
_LEAST = 1e-9  # between the lowest and the highest cosine; less is rounding
_STEPS = 100  # of Newton's method, which takes about ten
_SEED = 20180901


@dataclass(frozen=True)
class HeldOut:
    """How well P(same) agrees with pairs that were not fitted.

    Attributes:
        error: expected calibration error: the mean over the pairs of |mean P(same) - share of same pairs| of their bin.
        noise: what `error` would be on average for as many independent pairs if P(same) were exact.
        predicted, observed: [BINS] float64, mean P(same) and share of same pairs of each bin; NaN where it is empty.
        pairs: [BINS] int64.
        folds: of identities, or of pairs where those are not known; a pair is judged by a fit on pairs of other folds.
    """

    error: float
    noise: float
    predicted: np.ndarray
    observed: np.ndarray
    pairs: np.ndarray
    folds: int


@dataclass(frozen=True)
class Fit:
    """P(same) as straight lines of log odds between the cosines [K], see
    plsc.utils.calibration.Calibration."""

    cosine: np.ndarray
    log_odds: np.ndarray
    prior: float
    held_out: HeldOut

    def error_text(self) -> str:
        """Format the error on pairs held out for people."""
        error, noise = percent(self.held_out.error), percent(self.held_out.noise)
        return f"{error} on pairs not fitted (an exact one would have {noise} or so)"

    def numbers(self) -> dict[str, Any]:
        """Return the numbers of results.json."""
        kept = self.held_out.pairs > 0
        columns = (self.held_out.predicted, self.held_out.observed, self.held_out.pairs)
        bins = zip(*(column[kept].tolist() for column in columns))
        return {
            "method": METHOD,
            "prior": self.prior,
            "error": self.held_out.error,
            "noise": self.held_out.noise,
            "folds": self.held_out.folds,
            "bins": [dict(zip(("predicted", "observed", "pairs"), one)) for one in bins],
            "cosine": self.cosine.tolist(),
            "log_odds": self.log_odds.tolist(),
        }


def fit_pairs(similarity: np.ndarray, same: np.ndarray, of_pair: np.ndarray | None = None) -> Fit | None:
    """Fit P(same) to the cosines [P] of pairs, same [P] bool; None if all are of one kind, or equally
    similar, or if they are too few, or of too few identities, to measure its error.

    Args:
        of_pair: the two identities of each pair, int64 [P, 2], from 0 on without gaps; None: not known.
    """
    similarity = np.clip(similarity, -1, 1)
    low, high = float(similarity.min()), float(similarity.max())
    if high - low < _LEAST or same.all() or not same.any():
        return None
    edges = np.linspace(low, high, _CELLS + 1)
    cell = np.searchsorted(edges[1:-1], similarity, side="right")
    units = np.arange(len(same))[:, None] if of_pair is None else of_pair
    counts, folds = _counts_of_folds(cell, same, units)
    places = np.linspace(-1, 1, _CELLS * 2 + 1)[1::2]  # the middle of each cell; low is -1, high is 1
    knots = np.linspace(-1, 1, _KNOTS)
    all_pairs = counts.sum((0, 1))
    held_out = _judge(places, counts, folds)
    if held_out is None:
        return None
    return Fit(
        cosine=np.linspace(low, high, _KNOTS),
        log_odds=np.maximum.accumulate(_log_odds(places, all_pairs, knots)),
        prior=float(same.mean()),
        held_out=held_out,
    )


def _counts_of_folds(cell: np.ndarray, same: np.ndarray, units: np.ndarray) -> tuple[np.ndarray, int]:
    """Count the pairs by the folds of their two units, the cell and the kind: int64 [F, F, C, 2], and F.

    units: [P, 1 or 2]. A pair of folds a and b is counted at [min, max].
    """
    count = int(units.max()) + 1
    folds = min(FOLDS, count)
    fold = np.random.default_rng(_SEED).permutation(np.arange(count) % folds)[units]
    flat = ((fold.min(1) * folds + fold.max(1)) * _CELLS + cell) * 2 + same
    return np.bincount(flat, minlength=folds * folds * _CELLS * 2).reshape(folds, folds, _CELLS, 2), folds


def _log_odds(places: np.ndarray, counts: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Fit the counts [C, 2] of different and same pairs at `places` [C], and compute log odds at `at`, [K],
    all in [-1, 1]."""
    different, same = counts.sum(0)
    # Platt's targets: what is known of P(same) after so many pairs that were all of one kind. They keep the
    # fit finite.
    lowest, highest = 1 / (different + 2), (same + 1) / (same + 2)
    if counts[:, 1] @ places / same <= counts[:, 0] @ places / different:  # no better than chance
        return np.full(len(at), _logit(same / (same + different)))
    used = counts.any(1)
    number, target = counts[used].sum(1), counts[used] @ (lowest, highest)
    constant, slope, square = _newton(_powers(places[used]), number, target)
    if square:  # a parabola falls on one side of its vertex: constant there
        vertex = -slope / (2 * square)
        at = np.maximum(at, vertex) if square > 0 else np.minimum(at, vertex)
    return np.clip(_powers(at) @ (constant, slope, square), _logit(lowest), _logit(highest))


def _powers(places: np.ndarray) -> np.ndarray:
    return np.stack([np.ones_like(places), places, places**2], axis=1)


def _newton(inputs: np.ndarray, number: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Maximise the likelihood of a logistic regression: `target` [C] of `number` [C] are 1 where the inputs
    are [C, 3]."""

    def loss(weights: np.ndarray) -> float:
        odds = inputs @ weights
        return float(number @ np.logaddexp(0, odds) - target @ odds)

    weights = np.zeros(inputs.shape[1])
    for _ in range(_STEPS):
        share = _sigmoid(inputs @ weights)
        gradient = inputs.T @ (target - number * share)
        curvature = (inputs.T * (number * share * (1 - share))) @ inputs
        step = np.linalg.lstsq(curvature, gradient, rcond=None)[0]
        before = loss(weights)
        while loss(weights + step) > before and np.abs(step).max() > 1e-9:
            step /= 2
        weights = weights + step
        if np.abs(step).max() < 1e-9:
            break
    return weights


def _judge(places: np.ndarray, counts: np.ndarray, folds: int) -> HeldOut | None:
    """Compare P(same) of each pair, by a fit on the pairs without either of its folds, with what it is; None
    where a fit would have pairs of one kind only."""
    all_pairs = counts.sum((0, 1))
    of_fold = (
        counts.sum(0) + counts.sum(1) - counts[range(folds), range(folds)]
    )  # [F, C, 2]: with a unit of it
    predicted, pairs, same, spread = np.zeros((4, BINS))
    for first in range(folds):
        for second in range(first, folds):
            judged = counts[first, second]
            if not judged.any():
                continue
            others = all_pairs - of_fold[first]
            if second != first:
                others += judged - of_fold[second]
            if not others.any(0).all():
                return None
            # The kinds are not left out in equal shares; P(same) is for the share of the whole set.
            shift = _prior_log_odds(all_pairs) - _prior_log_odds(others)
            share = _sigmoid(_log_odds(places, others, places) + shift)
            place, number = np.minimum((share * BINS).astype(int), BINS - 1), judged.sum(1)
            predicted += np.bincount(place, number * share, BINS)
            spread += np.bincount(place, number * share * (1 - share), BINS)
            pairs += np.bincount(place, number, BINS)
            same += np.bincount(place, judged[:, 1], BINS)
    total = pairs.sum()
    with np.errstate(invalid="ignore"):
        return HeldOut(
            error=float(np.abs(predicted - same).sum() / total),
            noise=float(np.sqrt(2 / np.pi * spread).sum() / total),  # the mean of |x| of a normal x
            predicted=predicted / pairs,
            observed=same / pairs,
            pairs=pairs.astype(np.int64),
            folds=folds,
        )


def _sigmoid(odds: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-odds))


def _logit(share: float) -> float:
    return float(np.log(share / (1 - share)))


def _prior_log_odds(counts: np.ndarray) -> float:
    different, same = counts.sum(0)
    return float(np.log(same / different))


def thresholds(
    roc: Roc, similarity: np.ndarray, fars: Sequence[float], of_pair: np.ndarray | None = None
) -> list[Threshold]:
    """Find the threshold of each FAR that the different pairs allow, with its 95 % confidence interval.

    An interval has the thresholds at which the FAR of these pairs is no further from the wanted one than
    chance explains:
    1.96 standard deviations. That of a share of independent pairs is the binomial's; where the identities are
    known, pairs that have one in common are taken as dependent (Fafchamps and Gubert 2007, Journal of
    Development Economics 83(2)), if that is more. A side that would allow not even one false accept, or all
    of them, is None.

    Args:
        roc: of all pairs. similarity: of the different pairs, [N]. of_pair: their identities, int64 [N, 2]; None: not known.
    """
    count = len(similarity)
    of_two = None if of_pair is None else _number_of_two(of_pair)
    points = []
    for far in fars:
        if count < needed(far):
            continue
        cosine = threshold_at_far(roc, far)
        variance = far * (1 - far) / count
        if of_pair is not None:
            variance = max(variance, _variance_of_mean((similarity > cosine).astype(float), of_pair, of_two))
        spread = Z * np.sqrt(variance)
        points.append(
            Threshold(
                far=far,
                cosine=_bounded(cosine),
                low=_bounded(threshold_at_far(roc, far + spread)) if far + spread < 1 else None,
                high=_bounded(threshold_at_far(roc, far - spread)) if (far - spread) * count >= 1 else None,
            )
        )
    return points


def _number_of_two(of_pair: np.ndarray) -> np.ndarray:
    """Number the pairs [N, 2] of identities, int64 [N]: the pairs of images of the same two have one
    number."""
    low, high = of_pair.min(1), of_pair.max(1)
    return np.unique(low * (int(of_pair.max()) + 1) + high, return_inverse=True)[1]


def _variance_of_mean(value: np.ndarray, of_pair: np.ndarray, of_two: np.ndarray) -> float:
    """Estimate the variance of the mean of `value` [N], where pairs that share an identity are dependent.

    of_two: see `_number_of_two`.
    """
    value = value - value.mean()
    of_each = np.bincount(of_pair.ravel(), np.repeat(value, 2))
    twice = np.bincount(of_two, value)  # pairs of the same two identities meet at both
    return float((np.sum(of_each**2) - np.sum(twice**2)) / len(value) ** 2)


def _bounded(cosine: float) -> float:
    return min(1.0, max(-1.0, cosine))


def cosine_with_interval(point: Threshold) -> str:
    """Format a threshold and its interval for people: 0.5526 (0.5346 to 0.5702)."""
    low = "lower" if point.low is None else f"{point.low:.4f}"
    high = f"{point.cosine:.4f} or more" if point.high is None else f"{point.high:.4f}"
    return f"{point.cosine:.4f} ({low} to {high})"
