"""Verification: decide whether two images (or templates) are of the same class, and compute the metrics.

The 10-fold accuracy is LFW's protocol as InsightFace's published verification code computes it: squared L2
distances of normalised embeddings, contiguous folds, each scored with the best threshold of the other nine.
ROC, AUC, EER and TAR@FAR are exact: from the sorted similarities, not from a grid. numpy only; try it:

    verify(np.random.rand(100, 8), np.random.rand(100, 8), np.arange(100) % 2 == 0).results()

Letters: P pairs, D embedding size, T thresholds of the grid, F folds. Accepted means: cosine > threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from plsc.errors import UserError
from plsc.evaluation.intervals import (
    EXACT_PAIRS,
    IN_BRACKETS,
    LEAST_PEOPLE,
    bootstrap,
    bootstrap_identities,
    percent,
    resamples,
    wilson,
    with_interval,
)
from plsc.evaluation.roc import (
    FARS,
    Roc,
    equal_error_rate,
    middle,
    needed,
    roc_curve,
    tar_at_far,
    threshold_at_far,
)

THRESHOLDS = np.arange(0, 4, 0.01)  # [T] squared distances, InsightFace's grid
MAX_FOLDS = 10
BLOCK_ELEMENTS = 1 << 18  # float64 numbers per block: 2 MB, so that a block stays in the cache
REUSED_ELEMENTS = 1 << 27  # of embeddings that are normalised once, not for each pair: 1 GB


@dataclass(frozen=True)
class Verification:
    """The result of `verify`. Rates are fractions in [0, 1]; None where the pairs do not allow one.

    Attributes:
        similarity: cosines [P] float64. same: [P] bool.
        accuracy, std: mean and population standard deviation over the folds.
        threshold: a cosine: the mean over the folds of 1 - d2 / 2, moved to the middle of the gap that it lies in.
        fold_accuracy: [F] float64.
        cell: [P] int64, see _cells.
        tar_at_far, threshold_at_far: of each FAR.
        people: [K] the identities in the pairs; None: not known. of_pair: [P, 2] int64, rows of `people`.
    """

    kind: ClassVar[str] = "verification"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "auc")
    similarity: np.ndarray
    same: np.ndarray
    accuracy: float | None
    std: float | None
    threshold: float | None
    fold_accuracy: np.ndarray
    cell: np.ndarray
    auc: float | None
    eer: float | None
    tar_at_far: dict[float, float | None]
    threshold_at_far: dict[float, float | None]
    roc: Roc | None
    notes: list[str] = field(default_factory=list)
    people: np.ndarray | None = None
    of_pair: np.ndarray | None = None

    @property
    def headline(self) -> str:
        """The result in a few words."""
        if self.accuracy is not None:
            return f"accuracy {percent(self.accuracy)} ± {100 * self.std:.2f}"
        area = "" if self.auc is None else f", area under ROC {self.auc:.5f}"
        return f"no accuracy: {self._no_accuracy}{area}"

    @property
    def _no_accuracy(self) -> str:
        return "needs at least 2 pairs" if len(self.same) < 2 else "folds of one kind"

    def row(self) -> dict[str, float | None]:
        """Return the row of metrics.jsonl: {"accuracy", "std", "threshold", "auc", "eer", "tar@far=0.1", ...,
        "pairs"}."""
        numbers = {name: getattr(self, name) for name in ("accuracy", "std", "threshold", "auc", "eer")}
        numbers.update({f"tar@far={far:g}": tar for far, tar in self.tar_at_far.items()})
        return {**numbers, "pairs": len(self.same)}

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Key of `row` -> its 95 % confidence interval by the bootstrap over identities, over pairs where
        those are not known (see plsc.evaluation.intervals); Wilson's where all resamples agree, as they do
        when every pair is right. Empty for fewer than LEAST_PEOPLE identities. Computed at the first use.
        """
        if self.people is not None and len(self.people) < LEAST_PEOPLE:
            return {}
        bounds: dict[str, tuple[float, float]] = {}
        if self.accuracy is not None:
            shape = len(self.fold_accuracy), len(THRESHOLDS) + 1, 2
            bounds["accuracy"] = self._bootstrap(
                self.cell, shape, lambda counts: _fold_accuracies(counts)[0].mean(-1)[:, None]
            )[:, 0]
        if self.roc is not None:
            fars = [far for far, tar in self.tar_at_far.items() if tar is not None]
            names = ["eer", *(f"tar@far={far:g}" for far in fars)]
            cell, shape = _roc_cells(self.roc, self.similarity, self.same)
            bounds.update(zip(names, self._bootstrap(cell, shape, lambda counts: _rates(counts, fars)).T))
        row, (all_units, positives, negatives) = self.row(), self._independent_units()
        trials = {"accuracy": all_units, "eer": min(positives, negatives)}
        return {
            key: (float(low), float(high)) if low < high else wilson(row[key], trials.get(key, positives))
            for key, (low, high) in bounds.items()
        }

    def _bootstrap(self, cell: np.ndarray, shape: tuple[int, ...], rates: Callable) -> np.ndarray:
        if self.of_pair is not None:
            return bootstrap_identities(cell, shape, self.of_pair, rates)
        return bootstrap(np.bincount(cell, minlength=math.prod(shape)).reshape(shape), rates)

    def _independent_units(self) -> tuple[int, int, int]:
        """Count the independent units for Wilson's interval, of all, same and different pairs: identities if
        known, else pairs."""
        kinds = (np.ones(len(self.same), bool), self.same, ~self.same)
        if self.of_pair is None:
            return tuple(int(kind.sum()) for kind in kinds)
        return tuple(min(len(np.unique(self.of_pair[kind])), int(kind.sum())) for kind in kinds)

    def numbers(self) -> dict:
        """Return the numbers of results.json: `row`, the intervals, the cosine above which each FAR is kept,
        the accuracy of each fold."""
        return {
            **self.row(),
            "confidence_95": self.intervals,
            "threshold@far": {
                f"{far:g}": cosine for far, cosine in self.threshold_at_far.items() if cosine is not None
            },
            "identities": None if self.people is None else len(self.people),
            "fold_accuracy": self.fold_accuracy.tolist(),
        }

    def results(self) -> dict[str, str]:
        """Format the numbers for people: label -> value with its unit, or why there is none."""
        negatives = int(np.sum(~self.same))
        both, none = "needs positive and negative pairs", self._no_accuracy
        given = self.intervals
        labels = {
            "pairs": f"{len(self.same):,} ({len(self.same) - negatives:,} same, {negatives:,} different)",
            "accuracy (mean of folds)": none,
            "deviation of the folds": none,
            "threshold (cosine)": none if self.threshold is None else f"{self.threshold:.4f}",
            "area under ROC": both if self.auc is None else f"{self.auc:.5f}",
            "equal error rate": both if self.eer is None else with_interval(self.eer, given.get("eer")),
        }
        if self.accuracy is not None:
            labels["accuracy (mean of folds)"] = with_interval(self.accuracy, given.get("accuracy"))
            labels["deviation of the folds"] = f"± {100 * self.std:.2f} %"
        for far, tar in self.tar_at_far.items():
            if tar is not None:
                rate = with_interval(tar, given.get(f"tar@far={far:g}"))
                labels[f"TAR at FAR {far:g}"] = f"{rate}, above a cosine of {self.threshold_at_far[far]:.4f}"
        lacking = [far for far, tar in self.tar_at_far.items() if tar is None]
        if self.roc is None:
            labels["TAR at FAR"] = both
        elif lacking:
            lower = "TAR at lower FAR" if len(lacking) < len(self.tar_at_far) else "TAR at FAR"
            labels[lower] = f"{lacking[0]:g} needs at least {needed(lacking[0]):,} negatives"
        if given:
            units = "pairs" if self.people is None else f"{len(self.people):,} identities"
            labels[IN_BRACKETS] = f"95 % confidence, {resamples(len(self.same)):,} resamples of {units}"
        elif self.people is not None and len(self.people) < LEAST_PEOPLE:
            labels["intervals"] = f"need at least {LEAST_PEOPLE} identities, these are {len(self.people)}"
        return labels


def verify(emb_a: np.ndarray, emb_b: np.ndarray, same: np.ndarray) -> Verification:
    """Verify P pairs: emb_a and emb_b [P, D] of any float type (need not be normalised), same [P] bool.

    A zero embedding resembles nothing: its pairs get cosine 0 (InsightFace's code gives 0.5 to everything).
    UserError: shapes that do not fit, no pairs, an embedding that is not finite.
    """
    emb_a = np.asarray(emb_a)
    emb_b = np.asarray(emb_b)
    same = np.asarray(same)
    if emb_a.ndim != 2 or emb_a.shape != emb_b.shape or same.shape != emb_a.shape[:1]:
        raise UserError(
            f"verification: embeddings of shape {emb_a.shape} and {emb_b.shape} with same of shape"
            f" {same.shape} do not fit, give [P, D], [P, D] and [P]"
        )
    return _verify(lambda rows: (_normalise(emb_a[rows]), _normalise(emb_b[rows])), emb_a.shape[1], same)


def verify_pairs(
    embeddings: np.ndarray,
    pairs: np.ndarray,
    same: np.ndarray,
    identity_of: np.ndarray | None = None,
) -> Verification:
    """Verify pairs int64 [P, 2] that index embeddings [N, D], as `verify` does.

    Pairs are gathered a block at a time, so 15 million pairs take only the memory of their similarities.
    identity_of: [N], text or whole numbers, for the intervals.
    """
    if len(embeddings) < len(pairs) and embeddings.size <= REUSED_ELEMENTS:  # each is in several pairs
        unit, norm = _normalise(embeddings)
        result = _verify(lambda rows: tuple((unit[i], norm[i]) for i in pairs[rows].T), unit.shape[1], same)
    else:
        result = _verify(
            lambda rows: tuple(_normalise(embeddings[i]) for i in pairs[rows].T), embeddings.shape[1], same
        )
    if identity_of is None:
        return result
    everybody, number = np.unique(identity_of, return_inverse=True)
    people, of_pair = np.unique(number[pairs], return_inverse=True)
    return replace(result, people=everybody[people], of_pair=of_pair.reshape(-1, 2))


_Unit = (
    "tuple[np.ndarray, np.ndarray]"  # of length 1, [p, D] float64, a copy; and the norms [p] that they had
)
_Take = Callable[[slice], "tuple[_Unit, _Unit]"]  # the two embeddings of some pairs


def _verify(take: _Take, size: int, same: np.ndarray) -> Verification:
    if len(same) == 0:
        raise UserError("verification: the set has 0 pairs, give at least one")
    distance, zeros = _squared_distances(take, len(same), size)
    result = verify_distances(distance, same.astype(bool))
    if zeros:
        result.notes.append(f"Pairs with an embedding of length 0: {zeros:,}; their cosine was taken as 0.")
    return result


def verify_distances(distance: np.ndarray, same: np.ndarray) -> Verification:
    """Verify as `verify` does, from the squared distances [P] float64 of normalised embeddings."""
    similarity = 1 - distance / 2
    folds = min(MAX_FOLDS, len(same))
    cell = _cells(distance, same, folds)
    table = np.bincount(cell, minlength=folds * (len(THRESHOLDS) + 1) * 2).reshape(folds, -1, 2)
    notes = []
    fold_accuracy, fold_threshold = np.empty(0), np.empty(0)
    if folds_of_one_kind(same):
        notes.append(f"{ONE_KIND}.")
    elif len(same) >= 2:
        fold_accuracy, fold_threshold = _fold_accuracies(table)
    if 2 <= len(same) < 2 * MAX_FOLDS:
        notes.append(
            f"{len(same)} pairs make {folds} folds of one or two pairs each, so the accuracy means little."
        )
    roc = None
    if same.all() or not same.any():
        kind = "the same class" if same.all() else "different classes"
        notes.append(f"All pairs are of {kind}: no ROC, AUC, EER or TAR, and an accuracy means little.")
    else:
        roc = roc_curve(similarity, same)
    has_accuracy = len(fold_accuracy) > 0
    negatives = int(np.sum(~same))
    # With too few negatives not even one false accept is allowed.
    measured = {far: roc is not None and negatives >= needed(far) for far in FARS}
    return Verification(
        similarity=similarity,
        same=same,
        accuracy=float(np.mean(fold_accuracy)) if has_accuracy else None,
        std=float(np.std(fold_accuracy)) if has_accuracy else None,
        threshold=_centred(similarity, float(1 - np.mean(fold_threshold) / 2)) if has_accuracy else None,
        fold_accuracy=fold_accuracy,
        cell=cell,
        auc=roc.area() if roc else None,
        eer=float(equal_error_rate(roc.far, roc.tar)) if roc else None,
        tar_at_far={
            far: float(tar_at_far(roc.far, roc.tar, far)) if known else None
            for far, known in measured.items()
        },
        threshold_at_far={
            far: threshold_at_far(roc, far) if known else None for far, known in measured.items()
        },
        roc=roc,
        notes=notes,
    )


ONE_KIND = (
    "No accuracy: each of the ten folds, which are cut in the pairs' order, has pairs of one kind only;"
    " `alternate: true` of PairList and BinPairs spreads them"
)


def folds_of_one_kind(same: np.ndarray) -> bool:
    """Return whether the pairs are sorted by kind: folds of two pairs or more, of which at most one has both
    kinds."""
    if len(same) < 2 * MAX_FOLDS or same.all() or not same.any():
        return False
    return sum(fold.any() and not fold.all() for fold in np.array_split(same, MAX_FOLDS)) <= 1


def _squared_distances(take: _Take, pairs: int, size: int) -> tuple[np.ndarray, int]:
    """Compute squared L2 distances [P] float64 of the normalised embeddings of each pair, and the number of
    pairs with a zero one.

    Computed from the difference as InsightFace does, not as 2 - 2 cos: equal images have distance exactly 0.
    In blocks, which need no memory beside the inputs and the result.
    """
    distance = np.empty(pairs)
    zeros = 0
    block = max(1, BLOCK_ELEMENTS // max(1, size))
    for start in range(0, pairs, block):
        rows = slice(start, min(start + block, pairs))
        (a, norm_a), (b, norm_b) = take(rows)
        bad = ~(np.isfinite(norm_a) & np.isfinite(norm_b))
        if bad.any():
            raise UserError(
                f"verification: an embedding of pair {start + int(np.argmax(bad))} is not finite;"
                " the network has diverged or its images are broken, lower the learning rate or check them"
            )
        a -= b
        dead = (norm_a == 0) | (norm_b == 0)
        distance[rows] = np.where(dead, 2.0, np.einsum("pd,pd->p", a, a))
        zeros += int(np.sum(dead))
    return distance, zeros


def worst_pairs(
    similarity: np.ndarray, same: np.ndarray, threshold: float | None, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Find the indices [<= count] int64 of the worst errors at a cosine threshold, worst first.

    First the false rejects (positives with the lowest similarity), then the false accepts (negatives with the
    highest). similarity [P], same [P] bool. Without a threshold (None): the hardest pairs, errors or not.
    """
    rejected = same if threshold is None else same & (similarity <= threshold)
    accepted = ~same if threshold is None else ~same & (similarity > threshold)
    rejects, accepts = np.flatnonzero(rejected), np.flatnonzero(accepted)
    rejects = rejects[np.argsort(similarity[rejects], kind="stable")]
    accepts = accepts[np.argsort(-similarity[accepts], kind="stable")]
    return rejects[:count], accepts[:count]


def _normalise(emb: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute unit rows [p, D] and their norms [p], in float64 (no float32 row overflows); a zero row stays
    zero."""
    emb = emb.astype(np.float64)
    norm = np.sqrt(np.einsum("pd,pd->p", emb, emb))
    emb /= np.where(norm == 0, 1.0, norm)[:, None]
    return emb, norm


def _centred(similarity: np.ndarray, threshold: float) -> float:
    """Move a threshold to the middle between the two similarities around it, where it accepts the same pairs.

    The protocol's grid puts it at the edge of the gap, just below the least similar pair that it accepts, and
    would reject other pairs of the same people that are hardly less similar.
    """
    accepted = similarity > threshold
    if accepted.all() or not accepted.any():
        return threshold
    return middle(float(similarity[~accepted].max()), float(similarity[accepted].min()))


def _cells(distance: np.ndarray, same: np.ndarray, folds: int) -> np.ndarray:
    """Compute the cell of each pair, int64 [P], in a table [F, T + 1, 2]: its fold, the first threshold of
    the grid below which it falls, and different or same.

    Counting the pairs of each cell replaces the loop over folds and thresholds: a pair is accepted by every
    threshold from its own cell of the grid on, so cumulated counts give the right decisions of each fold at
    each threshold.
    """
    sizes = np.full(folds, len(same) // folds)
    sizes[: len(same) % folds] += 1
    fold = np.repeat(np.arange(folds), sizes)
    # The first threshold with distance < threshold.
    first = np.searchsorted(THRESHOLDS, distance, side="right")
    return (fold * (len(THRESHOLDS) + 1) + first) * 2 + same


def _fold_accuracies(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the accuracy [..., F] on each fold at the squared distance [..., F] best on the others (the
    smallest of several).

    table: [..., F, T + 1, 2], the pairs in each of `_cells`. A fold that a resample leaves empty gets the
    accuracy of the others.
    """
    sizes = table.sum((-1, -2))
    gain = table[..., 1] - table[..., 0]
    negatives = table[..., 0].sum(-1, keepdims=True)
    right = negatives + np.cumsum(gain, axis=-1)[..., :-1]  # [..., F, T] right decisions
    total = right.sum(-2, keepdims=True)
    best = np.argmax(total - right, axis=-1)
    right_at_best = np.take_along_axis(right, best[..., None], -1)[..., 0]
    overall = (right_at_best.sum(-1) / sizes.sum(-1))[..., None]
    accuracy = np.where(sizes > 0, right_at_best / np.maximum(sizes, 1), overall)
    return accuracy, THRESHOLDS[best]


# With more pairs than the bootstrap draws one by one, the ROC has so many points: false accepts in equal
# ratios, so that the smallest rates keep every pair, and true accepts in equal steps.
ROC_POINTS = 3000


def _roc_cells(roc: Roc, similarity: np.ndarray, same: np.ndarray) -> tuple[np.ndarray, tuple[int, int]]:
    """Compute the cell of each pair, int64 [P], in a table [K, 2], and the table's shape: between which
    points of the ROC the pair lies, most similar first, and different or same."""
    points = np.arange(len(roc.far))
    if len(same) > EXACT_PAIRS:
        positives = int(np.sum(same))
        false, true = np.rint(roc.far * (len(same) - positives)), np.rint(roc.tar * positives)
        chosen = np.concatenate(
            [
                np.searchsorted(false, np.geomspace(1, false[-1], ROC_POINTS)),
                np.searchsorted(true, np.linspace(1, true[-1], ROC_POINTS)),
                [0, len(false) - 1],
            ]
        )
        points = np.unique(np.minimum(chosen, len(false) - 1))
    # A pair is accepted from the first of the points on whose threshold it reaches; point 0 accepts none.
    between = np.searchsorted(-roc.threshold[points[1:]], -similarity)
    return between * 2 + same, (len(points) - 1, 2)


def _rates(counts: np.ndarray, fars: Sequence[float]) -> np.ndarray:
    """Compute EER and the TAR at each FAR of resampled counts [r, K, 2]: [r, 1 + M]. NaN where a kind was not
    drawn."""
    start = np.zeros((len(counts), 1, 2))
    accepted = np.concatenate([start, np.cumsum(counts, axis=1)], axis=1)
    with np.errstate(invalid="ignore"):
        far, tar = np.moveaxis(accepted / accepted[:, -1:], -1, 0)
        rates = np.stack(
            [equal_error_rate(far, tar), *(tar_at_far(far, tar, limit) for limit in fars)], axis=1
        )
    rates[np.isnan(far[:, -1]) | np.isnan(tar[:, -1])] = np.nan
    return rates
