"""Verification: decide whether two images (or templates) show the same class, and compute the metrics.

The 10-fold accuracy follows LFW's protocol as InsightFace's published verification code computes it. It uses
squared L2 distances between normalised embeddings and contiguous folds. Each fold is scored with the best
threshold of the other nine. ROC, AUC, EER and TAR@FAR are exact, because they are computed from the sorted
similarities and not from a grid. The module needs only numpy. Try it:

    verify(np.random.rand(100, 8), np.random.rand(100, 8), np.arange(100) % 2 == 0).results()

Letters: P pairs, D embedding size, T grid thresholds, F folds. A pair is accepted if its cosine is
above the threshold.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from plsc.errors import UserError
from plsc.evaluation.intervals import (
    IN_BRACKETS,
    LEAST_PEOPLE,
    QUANTILES,
    percent,
    resampled,
    resamples,
    wilson,
    with_interval,
)
from plsc.evaluation.pair_checks import alternating
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
from plsc.evaluation.search import row_lengths
from plsc.native.evaluation import verification as kernels

THRESHOLDS = np.arange(0, 4, 0.01)  # [T] squared distances, InsightFace's grid
_GRID = np.append(THRESHOLDS, [np.inf, np.inf])  # `_first_above` also reads the entries T and T + 1
MAX_FOLDS = 10
BLOCK_ELEMENTS = 1 << 18  # float64 numbers per block, which take 2 MB and so stay in the cache


@dataclass(frozen=True)
class Verification:
    """The result of `verify_pairs`, which a run's evaluation calls, and of `verify`.

    A rate is a fraction in [0, 1], or None if the pairs do not allow it.

    Attributes:
        similarity: float64 [P], cosines.
        same: bool [P], whether a pair shows one class.
        accuracy, std: mean and population standard deviation over the folds.
        threshold: the cosine above which two pictures show one class. For each fold, the squared distance
            that is best on the other folds is found. If d2 is the mean of these distances over the folds, the
            cosine 1 - d2 / 2 is moved to the middle between the two similarities around it (`_centred`). The
            result is the threshold. It is for two pictures. A gallery has another threshold, for a picture
            and all its people (gallery_threshold.py).
        fold_accuracy: float64 [F].
        cell: int16 [P], see `_cells`.
        auc: area under the ROC.
        eer: equal error rate.
        tar_at_far: TAR by FAR.
        threshold_at_far: cosine by FAR.
        roc: the curve. None if all pairs have one kind.
        notes: sentences for the report.
        people: [K], the identities in the pairs. None if not known.
        of_pair: int64 [P, 2], each pair's two rows in `people`. None if not known.
    """

    kind: ClassVar[str] = "verification"
    metric: ClassVar[str] = "accuracy"
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
        if self.accuracy is None:
            return "no accuracy: pairs of one kind"
        found = f"accuracy {percent(self.accuracy)} ± {100 * self.std:.2f}"
        is_near = np.ptp(self.similarity) < 0.05  # ten of the protocol's distances
        if is_near and self.eer is not None and 1 - self.eer - self.accuracy > 0.1:
            found += (
                f" (EER {percent(self.eer)}: the cosines are so near each other that the protocol's "
                "distances, in steps of 0.01, cannot part them)"
            )
        return found

    def row(self) -> dict[str, float | None]:
        """Return the row for metrics.jsonl: {"accuracy", "std", "threshold", "auc", "eer", "tar@far=0.1",
        ..., "pairs"}."""
        numbers = {name: getattr(self, name) for name in ("accuracy", "std", "threshold", "auc", "eer")}
        numbers.update({f"tar@far={far:g}": tar for far, tar in self.tar_at_far.items()})
        return {**numbers, "pairs": len(self.same)}

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Key of `row` -> its 95 % confidence interval by the bootstrap over identities.

        The interval is Wilson's if the identities are not known, or if all resamples agree, as they do if
        every pair is right. The dict is empty if there are fewer than LEAST_PEOPLE identities. It is computed
        at the first use.
        """
        if self.people is not None and len(self.people) < LEAST_PEOPLE:
            return {}
        rated = {key: rate for key, rate in self.row().items() if key.startswith(("accuracy", "eer", "tar@"))}
        rates = {key: rate for key, rate in rated.items() if rate is not None}
        bounds = np.zeros((2, len(rates)))
        if rates and self.people is not None:
            bounds = np.nanquantile(self._resampled_rates(), QUANTILES, axis=0)
        positives = int(self.same.sum())
        trials = {"accuracy": len(self.same), "eer": min(positives, len(self.same) - positives)}
        most = len(self.same) if self.people is None else len(self.people)
        return {
            key: (float(low), float(high))
            if low < high
            else wilson(rate, min(most, trials.get(key, positives)))
            for (key, rate), low, high in zip(rates.items(), *bounds)
        }

    def _resampled_rates(self) -> list[list[float]]:
        """Compute accuracy, EER and TAR at each FAR for each resample.

        Rates that the pairs do not allow are omitted. EER and TAR are NaN if a resample contains pairs of one
        kind only.
        """
        order = np.argsort(-self.similarity)
        last = np.append(np.flatnonzero(np.diff(self.similarity[order])), len(order) - 1)
        fars = [far for far, tar in self.tar_at_far.items() if tar is not None]
        draws = []
        for times in resampled(self.of_pair):
            rates = []
            if self.accuracy is not None:
                rates.append(_fold_accuracies(_table(self.cell, len(self.fold_accuracy), times))[0].mean())
            accepted = [np.cumsum((times * kind)[order])[last] for kind in (~self.same, self.same)]
            if accepted[0][-1] and accepted[1][-1]:
                far, tar = (np.append(0, count / count[-1]) for count in accepted)
                rates += [equal_error_rate(far, tar), *(tar_at_far(far, tar, limit) for limit in fars)]
            else:
                rates += [np.nan] * (1 + len(fars))
            draws.append(rates)
        return draws

    def numbers(self) -> dict:
        """Return the numbers for results.json: `row`, the intervals, the threshold at each FAR, the identity
        count, and each fold's accuracy."""
        return {
            **self.row(),
            "confidence_95": self.intervals,
            "threshold@far": {f"{far:g}": at for far, at in self.threshold_at_far.items() if at is not None},
            "identities": None if self.people is None else len(self.people),
            "fold_accuracy": self.fold_accuracy.tolist(),
        }

    def results(self) -> dict[str, str]:
        """Format the numbers for people: label -> value with its unit, or the reason why it is missing."""
        negatives = int(np.sum(~self.same))
        both, none = "needs positive and negative pairs", "pairs of one kind"
        given = self.intervals

        def shown(rate: float | None, key: str, lacking: str) -> str:
            return lacking if rate is None else with_interval(rate, given.get(key))

        labels = {
            "pairs": f"{len(self.same):,} ({len(self.same) - negatives:,} same, {negatives:,} different)",
            "accuracy (mean of folds)": shown(self.accuracy, "accuracy", none),
            "deviation of the folds": none if self.std is None else f"± {100 * self.std:.2f} %",
            "threshold (cosine)": none if self.threshold is None else f"{self.threshold:.4f}",
            "area under ROC": both if self.auc is None else f"{self.auc:.5f}",
            "equal error rate": shown(self.eer, "eer", both),
        }
        for far, tar in self.tar_at_far.items():
            label = f"TAR at FAR {far:g}"
            if tar is None:
                labels[label] = both if self.roc is None else f"needs at least {needed(far):,} negatives"
                break
            cosine = f"above a cosine of {self.threshold_at_far[far]:.4f}"
            labels[label] = f"{shown(tar, f'tar@far={far:g}', both)}, {cosine}"
        if given and self.people is None:
            labels[IN_BRACKETS] = "95 % confidence interval (Wilson)"
        elif given:
            how = f"{resamples(len(self.same)):,} resamples of {len(self.people):,} identities"
            labels[IN_BRACKETS] = f"95 % confidence, {how}"
        elif self.people is not None and len(self.people) < LEAST_PEOPLE:
            labels["intervals"] = f"need at least {LEAST_PEOPLE} identities, these are {len(self.people)}"
        return labels


def verify(emb_a: np.ndarray, emb_b: np.ndarray, same: np.ndarray) -> Verification:
    """Verify P pairs that are given as two arrays. A run's evaluation calls `verify_pairs` instead.

    Args:
        emb_a, emb_b: float [P, D], of any length. Row p of both is pair p.
        same: bool [P], whether a pair shows one class.

    Raises UserError if the lengths differ, if `same` contains anything except True and False (or 1 and 0), or
    if an embedding is not finite.
    """
    if not len(emb_a) == len(emb_b) == len(same):
        raise UserError(
            f"verify: emb_a, emb_b and same must have one row for each pair, they have {len(emb_a):,}, "
            f"{len(emb_b):,} and {len(same):,}"
        )
    number = np.arange(len(same))
    return verify_pairs(np.concatenate([emb_a, emb_b]), np.stack([number, len(same) + number], axis=1), same)


def verify_pairs(
    embeddings: np.ndarray, pairs: np.ndarray, same: np.ndarray, identity_of: np.ndarray | None = None
) -> Verification:
    """Verify P pairs among N embeddings.

    A zero embedding matches nothing. Its pairs get the cosine 0 (0.5 in InsightFace's code).

    Args:
        embeddings: float [N, D], of any length.
        pairs: int64 [P, 2], each pair's two rows in `embeddings`.
        same: bool [P], whether a pair shows one class.
        identity_of: [N], text or whole numbers, used for the intervals. None if not known.

    Raises UserError if `pairs` and `same` have different lengths, if `same` contains anything except True and
    False (or 1 and 0), or if an embedding is not finite.
    """
    if len(pairs) != len(same):
        raise UserError(f"verification: there are {len(pairs):,} pairs, but same has {len(same):,} values")
    same = np.asarray(same)
    if same.dtype != bool and not (valid := np.isin(same, (0, 1))).all():
        pair = int(np.argmin(valid))
        raise UserError(
            f"verification: same must be True or False for each pair, pair {pair} has {same[pair]}; if it "
            "has 1 and -1, give same > 0"
        )
    distance, zeros = _squared_distances(embeddings, pairs)
    result = verify_distances(distance, same.astype(bool))
    if zeros:
        result.notes.append(f"Pairs with an embedding of length 0: {zeros:,}; their cosine was taken as 0.")
    if identity_of is None:
        return result
    everybody, number = np.unique(identity_of, return_inverse=True)
    people, of_pair = np.unique(number[pairs], return_inverse=True)
    return replace(result, people=everybody[people], of_pair=of_pair.reshape(-1, 2))


def verify_distances(distance: np.ndarray, same: np.ndarray) -> Verification:
    """Verify as `verify` does, from distances.

    Args:
        distance: float64 [P], squared L2 distances between normalised embeddings.
        same: bool [P], whether a pair shows one class.
    """
    similarity = 1 - distance / 2
    folds = min(MAX_FOLDS, len(same))
    cell = _cells(distance, same, folds)
    lacking = one_kind(same)
    fold_accuracy, fold_threshold = np.empty((2, 0)) if lacking else _fold_accuracies(_table(cell, folds))
    roc = None if lacking else roc_curve(similarity, same)
    # With fewer negatives, the FAR does not allow even one false accept.
    known = [far for far in FARS if roc is not None and np.sum(~same) >= needed(far)]
    return Verification(
        similarity=similarity,
        same=same,
        accuracy=None if lacking else float(np.mean(fold_accuracy)),
        std=None if lacking else float(np.std(fold_accuracy)),
        threshold=None if lacking else _centred(similarity, float(1 - np.mean(fold_threshold) / 2)),
        fold_accuracy=fold_accuracy,
        cell=cell,
        auc=roc.area() if roc else None,
        eer=float(equal_error_rate(roc.far, roc.tar)) if roc else None,
        tar_at_far={far: float(tar_at_far(roc.far, roc.tar, far)) if far in known else None for far in FARS},
        threshold_at_far={far: threshold_at_far(roc, far) if far in known else None for far in FARS},
        roc=roc,
        notes=[f"{lacking}."] if lacking else [],
    )


def one_kind(same: np.ndarray) -> str:
    """Explain why pairs of one kind have no accuracy. Return "" if both kinds exist."""
    if same.all() or not same.any():
        kind = "the same class" if same.all() else "different classes"
        return f"No accuracy and no ROC: all pairs are of {kind}"
    return ""


def _squared_distances(embeddings: np.ndarray, pairs: np.ndarray) -> tuple[np.ndarray, int]:
    """Compute the squared L2 distance of each pair's normalised embeddings.

    It is computed from the difference of the embeddings, as InsightFace does, so that equal images have the
    distance 0.

    Returns the distances float64 [P], and how many pairs have a zero embedding.

    Raises UserError if the length in float32 of a pair's embedding is not finite.
    """
    length = row_lengths(embeddings.astype(np.float32, copy=False))  # the rule, although float64 has room
    if not np.isfinite(length).all():
        bad = ~np.isfinite(length)[pairs].all(axis=1)
        if bad.any():
            raise UserError(
                f"verification: an embedding of pair {int(np.argmax(bad))} is not finite;"
                " the network has diverged or the images are damaged: lower the learning rate, or check "
                "the images"
            )
    unit = embeddings.astype(np.float64)
    norm = np.sqrt(np.einsum("nd,nd->n", unit, unit))
    with np.errstate(invalid="ignore"):  # rows without a pair may be infinite
        unit /= np.where(length == 0, 1.0, norm)[:, None]
    distance = kernels.squared_distances(unit, pairs) if kernels.usable() else _by_numpy(unit, pairs)
    if length.all():
        return distance, 0
    dead = (length == 0)[pairs].any(axis=1)
    distance[dead] = 2.0
    return distance, int(dead.sum())


def _by_numpy(unit: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    distance = np.empty(len(pairs))
    block = max(1, BLOCK_ELEMENTS // unit.shape[1])  # blocks, so that 15 million pairs need no more memory
    for start in range(0, len(pairs), block):
        first, second = pairs[start : start + block].T
        difference = unit[first] - unit[second]
        distance[start : start + block] = np.einsum("pd,pd->p", difference, difference)
    return distance


def _centred(similarity: np.ndarray, threshold: float) -> float:
    """Move a threshold to the middle between the two similarities around it. It still accepts the same pairs.

    The protocol's grid puts it at the gap's edge, just below the least similar pair that it accepts.
    There it would reject other pairs with the same people that are only slightly less similar.
    """
    accepted = similarity > threshold
    if accepted.all() or not accepted.any():
        return threshold
    return middle(float(similarity[~accepted].max()), float(similarity[accepted].min()))


def _cells(distance: np.ndarray, same: np.ndarray, folds: int) -> np.ndarray:
    """Compute the flat index of each pair's cell, int16 [P], in a table [F, T + 1, 2].

    The table's axes are the fold, the grid's first threshold above the distance, and whether the
    pair is different (0) or same (1). The threshold of its cell and all higher ones accept a pair. Cumulative
    counts therefore give each fold's right decisions at each threshold.
    """
    parts = np.array_split(same, folds)
    cell = np.repeat(np.arange(folds, dtype=np.int16), [len(part) for part in parts])
    if len(same) >= 2 * MAX_FOLDS and sum(part.any() and not part.all() for part in parts) < 2:
        cell[alternating(same)] = cell.copy()  # the pairs are sorted by kind, so mix both kinds in each fold
    cell *= len(THRESHOLDS) + 1
    for start in range(0, len(cell), BLOCK_ELEMENTS):
        block = slice(start, start + BLOCK_ELEMENTS)
        cell[block] += _first_above(distance[block])
    cell *= 2
    cell += same
    return cell


def _first_above(distance: np.ndarray) -> np.ndarray:
    """Return the index of the grid's first threshold above each distance. It is faster than
    np.searchsorted."""
    # The guess is rounded by at most one step.
    guess = np.clip(distance * (1 / THRESHOLDS[1]), 0, len(THRESHOLDS)).astype(np.int16)
    return guess + (_GRID[guess] <= distance) + (_GRID[guess + 1] <= distance)


def _table(cell: np.ndarray, folds: int, times: np.ndarray | None = None) -> np.ndarray:
    """Count the pairs in each cell.

    Args:
        cell: int16 [P], see `_cells`.
        folds: F.
        times: int64 [P], how often each pair counts. None is once.

    Returns [F, T + 1, 2].
    """
    return np.bincount(cell, times, folds * (len(THRESHOLDS) + 1) * 2).reshape(folds, -1, 2)


def _fold_accuracies(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the accuracy on each fold at the threshold that is best on the other folds.

    Among several best thresholds, the smallest is taken. A fold that is empty in a resample gets the others'
    accuracy.

    Args:
        table: [F, T + 1, 2], how many pairs each cell has, see `_cells`.

    Returns the accuracies [F], and the thresholds [F], which are squared distances.
    """
    sizes = table.sum((1, 2))
    gain = table[..., 1] - table[..., 0]
    right = table[..., 0].sum(1, keepdims=True) + np.cumsum(gain, axis=1)[:, :-1]  # [F, T] right decisions
    best = np.argmax(right.sum(0) - right, axis=1)
    right_at_best = right[np.arange(len(right)), best]
    overall = right_at_best.sum() / sizes.sum()
    accuracy = np.where(sizes > 0, right_at_best / np.maximum(sizes, 1), overall)
    return accuracy, THRESHOLDS[best]
