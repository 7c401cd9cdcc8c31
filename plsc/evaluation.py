"""Verification: are two images of the same class? Embeddings of pairs in, numbers and curves out. And
classification of images of the trained classes: predictions in, accuracy out.

The 10-fold accuracy is LFW's protocol as InsightFace's published verification code computes it: squared L2
distances of normalised embeddings, contiguous folds, the best threshold of nine folds judges the tenth. ROC,
AUC, EER and TAR@FAR are exact: from the sorted similarities, not from a grid. numpy only; try it:

    verify(np.random.rand(100, 8), np.random.rand(100, 8), np.arange(100) % 2 == 0).results()

Letters: P pairs, D embedding size, T thresholds of the grid, F folds. Accepted means: cosine > threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from plsc.errors import UserError

FARS = (1e-1, 1e-2, 1e-3)  # the false accept rates at which TAR is reported
THRESHOLDS = np.arange(0, 4, 0.01)  # [T] squared distances, InsightFace's grid
MAX_FOLDS = 10
BLOCK_ELEMENTS = 1 << 18  # float64 numbers per block: 2 MB, so that a block stays in the cache


@dataclass(frozen=True)
class Roc:
    """The exact ROC: accepting the pairs with similarity >= threshold[k] gives far[k] and tar[k].

    All [K] float64, K - 1 distinct similarities, from (0, 0) at threshold inf to (1, 1) at the lowest.
    """

    far: np.ndarray
    tar: np.ndarray
    threshold: np.ndarray


@dataclass(frozen=True)
class Classification:
    """What was predicted for images whose classes were trained on."""

    kind: ClassVar[str] = "classification"
    label: np.ndarray  # [n] int64 in [0, C)
    predicted: np.ndarray  # [n] int64 in [0, C)
    num_classes: int  # C
    notes: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        """Top-1: the share of images whose predicted class is theirs."""
        return float(np.mean(self.predicted == self.label))

    @property
    def headline(self) -> str:
        """The result in a few words."""
        return f"accuracy {_percent(self.accuracy)}"

    def confusion(self) -> np.ndarray:
        """How many images of each class were taken for each: int64 [C, C], rows are the true classes."""
        cell = self.label * self.num_classes + self.predicted
        return np.bincount(cell, minlength=self.num_classes**2).reshape(self.num_classes, -1)

    def row(self) -> dict[str, float]:
        """For metrics.jsonl: {"accuracy", "images"}."""
        return {"accuracy": self.accuracy, "images": len(self.label)}

    def results(self) -> dict[str, str]:
        """The same numbers for people: label -> value with its unit."""
        right = np.bincount(self.label[self.predicted == self.label], minlength=self.num_classes)
        images = np.bincount(self.label, minlength=self.num_classes)
        share = np.divide(right, images, where=images > 0, out=np.full(self.num_classes, np.inf))
        worst = int(np.argmin(share))
        return {
            "images": f"{len(self.label):,} of {np.count_nonzero(images):,} classes",
            "accuracy (top-1)": _percent(self.accuracy),
            "worst class": f"{worst}: {_percent(share[worst])} of {images[worst]:,}",
        }


@dataclass(frozen=True)
class Verification:
    """What `verify` found. Rates are fractions in [0, 1]; what the pairs do not allow is None."""

    kind: ClassVar[str] = "verification"
    similarity: np.ndarray  # [P] float64, cosine
    same: np.ndarray  # [P] bool
    accuracy: float | None  # mean over the folds
    std: float | None  # population standard deviation over the folds
    threshold: float | None  # cosine: the mean over the folds of 1 - d2 / 2
    fold_accuracy: np.ndarray  # [F] float64
    auc: float | None
    eer: float | None
    tar_at_far: dict[float, float | None]
    roc: Roc | None
    notes: list[str] = field(default_factory=list)

    @property
    def headline(self) -> str:
        """The result in a few words."""
        if self.accuracy is None:
            return "accuracy cannot be computed"
        return f"accuracy {_percent(self.accuracy)} ± {100 * self.std:.2f}"

    def row(self) -> dict[str, float | None]:
        """For metrics.jsonl: {"accuracy", "std", "threshold", "auc", "eer", "tar@far=0.1", ..., "pairs"}."""
        numbers = {name: getattr(self, name) for name in ("accuracy", "std", "threshold", "auc", "eer")}
        numbers.update({f"tar@far={far:g}": tar for far, tar in self.tar_at_far.items()})
        return {**numbers, "pairs": len(self.same)}

    def results(self) -> dict[str, str]:
        """The same numbers for people: label -> value with its unit, or why there is none."""
        negatives = int(np.sum(~self.same))
        both, two = "needs positive and negative pairs", "needs at least 2 pairs"
        labels = {
            "pairs": f"{len(self.same):,} ({len(self.same) - negatives:,} same, {negatives:,} different)",
            "accuracy (mean ± std of folds)": two,
            "threshold (cosine)": two if self.threshold is None else f"{self.threshold:.4f}",
            "area under ROC": both if self.auc is None else f"{self.auc:.5f}",
            "equal error rate": both if self.eer is None else _percent(self.eer),
        }
        if self.accuracy is not None:
            labels["accuracy (mean ± std of folds)"] = f"{_percent(self.accuracy)} ± {_percent(self.std)}"
        for far, tar in self.tar_at_far.items():
            label = f"TAR at FAR {far:g}"
            if tar is not None:
                labels[label] = _percent(tar)
            else:
                labels[label] = (
                    both if self.roc is None else f"needs at least {_needed_negatives(far):,} negatives"
                )
        return labels


def classify(label: np.ndarray, predicted: np.ndarray, num_classes: int) -> Classification:
    """Judge predictions: label, predicted [n] int64; the head gives `num_classes` where it has no finite logit.

    UserError: no images, no prediction.
    """
    if len(label) == 0:
        raise UserError("classification: the set has 0 images, give at least one")
    lost = np.flatnonzero((predicted < 0) | (predicted >= num_classes))
    if len(lost):
        raise UserError(
            f"classification: image {lost[0]} has no finite logit ({len(lost):,} such images); the network has"
            " diverged or its images are broken, lower the learning rate or check them"
        )
    return Classification(label, predicted, num_classes)


def verify(
    emb_a: np.ndarray, emb_b: np.ndarray, same: np.ndarray, fars: Sequence[float] = FARS
) -> Verification:
    """Verify P pairs: emb_a and emb_b [P, D] of any float type (need not be normalised), same [P] bool.

    A zero embedding resembles nothing: its pairs get cosine 0 (InsightFace's code gives 0.5 to everything).
    UserError: shapes that do not fit, no pairs, an embedding that is not finite.
    """
    emb_a, emb_b, same = np.asarray(emb_a), np.asarray(emb_b), np.asarray(same)
    if emb_a.ndim != 2 or emb_a.shape != emb_b.shape or same.shape != emb_a.shape[:1]:
        raise UserError(
            f"verification: embeddings of shape {emb_a.shape} and {emb_b.shape} with same of shape"
            f" {same.shape} do not fit, give [P, D], [P, D] and [P]"
        )
    if len(same) == 0:
        raise UserError("verification: the set has 0 pairs, give at least one")
    distance, zeros = squared_distances(emb_a, emb_b)
    result = verify_distances(distance, same.astype(bool), fars)
    if zeros:
        result.notes.append(f"Pairs with an embedding of length 0: {zeros:,}; their cosine was taken as 0.")
    return result


def verify_distances(distance: np.ndarray, same: np.ndarray, fars: Sequence[float] = FARS) -> Verification:
    """`verify` from the squared distances [P] float64 of normalised embeddings."""
    similarity = 1 - distance / 2
    positives, negatives = int(np.sum(same)), int(np.sum(~same))
    notes = []
    fold_accuracy, fold_threshold = np.empty(0), np.empty(0)
    if len(same) >= 2:
        fold_accuracy, fold_threshold = _cross_validate(distance, same)
    else:
        notes.append(
            "One pair: no threshold can be chosen on some pairs and judged on others, so no accuracy."
        )
    if 2 <= len(same) < MAX_FOLDS:
        notes.append(f"{len(same)} pairs make only {len(same)} folds, one pair each.")
    roc = None
    if positives and negatives:
        roc = roc_curve(similarity, same)
    else:
        kind = "the same class" if positives else "different classes"
        notes.append(f"All pairs are of {kind}: no ROC, AUC, EER or TAR, and an accuracy means little.")
    folds = len(fold_accuracy)
    return Verification(
        similarity=similarity,
        same=same,
        accuracy=float(np.mean(fold_accuracy)) if folds else None,
        std=float(np.std(fold_accuracy)) if folds else None,
        threshold=float(1 - np.mean(fold_threshold) / 2) if folds else None,
        fold_accuracy=fold_accuracy,
        auc=float(np.sum(np.diff(roc.far) * (roc.tar[1:] + roc.tar[:-1]) / 2)) if roc else None,
        eer=_equal_error_rate(roc) if roc else None,
        tar_at_far={far: _tar_at_far(roc, far, negatives) if roc else None for far in fars},
        roc=roc,
        notes=notes,
    )


def squared_distances(emb_a: np.ndarray, emb_b: np.ndarray) -> tuple[np.ndarray, int]:
    """Squared L2 distances [P] float64 of the normalised rows of emb_a, emb_b [P, D]; count of zero pairs.

    Taken from the difference as InsightFace does, not as 2 - 2 cos: equal images have distance exactly 0.
    Worked through in blocks, so memory stays at the inputs and the result.
    """
    pairs, size = emb_a.shape
    distance = np.empty(pairs)
    zeros = 0
    block = max(1, BLOCK_ELEMENTS // max(1, size))
    for start in range(0, pairs, block):
        rows = slice(start, min(start + block, pairs))
        a, norm_a = _normalise(emb_a[rows])
        b, norm_b = _normalise(emb_b[rows])
        bad = ~(np.isfinite(norm_a) & np.isfinite(norm_b))
        if bad.any():
            raise UserError(
                f"verification: an embedding of pair {start + int(np.argmax(bad))} is not finite;"
                " the network has diverged or its images are broken, lower the learning rate or check them"
            )
        a -= b
        dead = (norm_a == 0) | (norm_b == 0)
        distance[rows] = np.where(dead, 2.0, np.sum(np.square(a, out=a), axis=1))
        zeros += int(np.sum(dead))
    return distance, zeros


def roc_curve(similarity: np.ndarray, same: np.ndarray) -> Roc:
    """The exact ROC of similarities [P] and same [P] bool, both kinds present. Equal ones are one point."""
    order = np.argsort(-similarity, kind="stable")
    score, hit = similarity[order], same[order]
    last = np.append(
        np.flatnonzero(np.diff(score)), len(score) - 1
    )  # the last pair of each distinct similarity
    true_accepts = np.cumsum(hit)[last]
    false_accepts = 1 + last - true_accepts
    return Roc(
        far=np.append(0.0, false_accepts / false_accepts[-1]),
        tar=np.append(0.0, true_accepts / true_accepts[-1]),
        threshold=np.append(np.inf, score[last]),
    )


def worst_pairs(
    similarity: np.ndarray, same: np.ndarray, threshold: float | None, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Indices [<= count] int64 of the worst errors at a cosine threshold, worst first.

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
    """Unit rows [p, D] and their norms [p], in float64 (no float32 row overflows); a zero row stays zero."""
    emb = emb.astype(np.float64)
    norm = np.sqrt(np.einsum("pd,pd->p", emb, emb))
    emb /= np.where(norm == 0, 1.0, norm)[:, None]
    return emb, norm


def _cross_validate(distance: np.ndarray, same: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy [F] on each fold at the squared distance [F] best on the others (the smallest of several).

    Counting replaces the loop over folds and thresholds: a pair is accepted by every threshold from its own
    cell of the grid on, so cumulated counts per cell give the right decisions of each fold at each threshold.
    """
    pairs, folds = len(same), min(MAX_FOLDS, len(same))
    sizes = np.full(folds, pairs // folds)
    sizes[: pairs % folds] += 1
    fold = np.repeat(np.arange(folds), sizes)
    first = np.searchsorted(
        THRESHOLDS, distance, side="right"
    )  # the first threshold with distance < threshold
    width = len(THRESHOLDS) + 1
    cell = fold * width + first
    gain = np.bincount(cell[same], minlength=folds * width) - np.bincount(
        cell[~same], minlength=folds * width
    )
    negatives = np.bincount(fold[~same], minlength=folds)
    right = (
        negatives[:, None] + np.cumsum(gain.reshape(folds, width), axis=1)[:, :-1]
    )  # [F, T] right decisions
    best = np.argmax(right.sum(axis=0) - right, axis=1)
    return right[np.arange(folds), best] / sizes, THRESHOLDS[best]


def _equal_error_rate(roc: Roc) -> float:
    """The rate at which FAR = FRR, on the straight line between the two ROC points around it."""
    gap = roc.far - (1 - roc.tar)  # rises from -1 to 1
    k = int(np.argmax(gap >= 0))
    share = -gap[k - 1] / (gap[k] - gap[k - 1])
    return float(roc.far[k - 1] + share * (roc.far[k] - roc.far[k - 1]))


def _tar_at_far(roc: Roc, far: float, negatives: int) -> float | None:
    """The highest TAR among thresholds whose FAR does not exceed `far`: no interpolation between thresholds.

    None where not even one false accept would be allowed (negatives * far < 1).
    """
    if negatives < _needed_negatives(far):
        return None
    return float(roc.tar[np.searchsorted(roc.far, far, side="right") - 1])


def _needed_negatives(far: float) -> int:
    return int(np.ceil(1 / far - 1e-6))  # 1 / 1e-3 may come out a little above 1000


def _percent(rate: float) -> str:
    return f"{100 * rate:.2f} %"
