"""Retrieval: rank a whole gallery for each query, for products and re-identification. Mean average precision
and recall@k.

A query's average precision is the mean, over the right gallery images, of the share of right ones among all
that are at least as similar (scikit-learn's average_precision_score). Recall@k: how often a right one is
among the k most similar; re-identification calls it CMC or rank-k. Where cameras are known, gallery images of
the query's identity from the query's camera do not count, as in Market-1501 (Zheng et al. 2015, ICCV); nor
does the query itself where it is in the gallery. Queries for which no right image is left are left out, and
counted.

Ties: similarities are rounded to multiples of 2**-20, about the error of a float32 product, so equal
embeddings are equally similar wherever they stand in a matrix. For recall@k, of equally similar images the
wrong ones come first: a network whose embeddings are all alike has a recall of 0. Try it:

    retrieve(np.eye(4)[[0, 1, 0, 1]], np.array([2, 3]), np.array([0, 1]), np.array([0, 1, 0, 1])).results()
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from plsc.errors import UserError
from plsc.evaluation.intervals import IN_BRACKETS, bootstrap_groups, percent, wilson, with_interval
from plsc.evaluation.search import finite_unit_rows

RANKS = (1, 5, 10)
CMC_RANKS = 50
_STEP = np.float32(2**20)  # similarities are compared as whole numbers of 1 / _STEP
_BLOCK = 2**26  # similarities at a time, or a query's where the gallery has more: 256 MB


@dataclass(frozen=True)
class Retrieval:
    """The result of `retrieve`. Rates are fractions in [0, 1]; None where every query is left out."""

    kind: ClassVar[str] = "retrieval"
    metric: ClassVar[str] = "map"
    average_precision: np.ndarray  # float64 [Q], of the queries that count
    rank: np.ndarray  # int64 [Q], 1 and up: of the most similar right image
    identity: np.ndarray  # int64 [Q], of the query
    left_out: int  # queries without a right image
    gallery: int  # images
    notes: tuple[str, ...] = ()

    def recall(self, k: int) -> float | None:
        """Return how often a right image is among the k most similar ones."""
        return float(np.mean(self.rank <= k)) if len(self.rank) else None

    @property
    def cmc(self) -> np.ndarray | None:
        """Return recall@1, recall@2, ... up to 50 or the size of the gallery, float64."""
        ranks = range(1, min(CMC_RANKS, self.gallery) + 1)
        return np.array([self.recall(k) for k in ranks]) if len(self.rank) else None

    @property
    def headline(self) -> str:
        """The result in a few words."""
        if not len(self.rank):
            return "mAP cannot be computed"
        return f"mAP {percent(self.row()['map'])}, recall@1 {percent(self.recall(1))}"

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Key of `row` -> its 95 % confidence interval: the bootstrap's over the queries' identities;
        Wilson's where all draws agree."""
        if not len(self.rank):
            return {}
        values = np.stack([self.average_precision, *(self.rank <= k for k in RANKS)], axis=1)
        bounds = bootstrap_groups(values, self.identity).T
        keys, people = ["map", *(f"recall@{k}" for k in RANKS)], len(np.unique(self.identity))
        row = self.row()
        return {
            key: (float(low), float(high)) if low < high else wilson(row[key], people)
            for key, (low, high) in zip(keys, bounds)
        }

    def row(self) -> dict[str, float | None]:
        """Return the row of metrics.jsonl: {"map", "recall@1", "recall@5", "recall@10", "queries",
        "left_out", "gallery"}."""
        return {
            "map": float(np.mean(self.average_precision)) if len(self.rank) else None,
            **{f"recall@{k}": self.recall(k) for k in RANKS},
            "queries": len(self.rank),
            "left_out": self.left_out,
            "gallery": self.gallery,
        }

    def numbers(self) -> dict:
        """Return the numbers of results.json: `row`, the intervals and the CMC curve."""
        cmc = self.cmc
        return {
            **self.row(),
            "confidence_95": self.intervals,
            "cmc": None if cmc is None else cmc.tolist(),
        }

    def results(self) -> dict[str, str]:
        """Format the numbers for people: label -> value with its unit, or why there is none."""
        row, intervals = self.row(), self.intervals
        people = len(np.unique(self.identity))
        labels = {
            "queries": f"{len(self.rank):,} of {people:,} identities",
            "left out, without a match": f"{self.left_out:,}",
            "gallery": f"{self.gallery:,} images",
        }
        for label, key in (("mAP", "map"), *((f"recall@{k}", f"recall@{k}") for k in RANKS)):
            known = row[key] is not None
            labels[label] = (
                with_interval(row[key], intervals[key])
                if known
                else "needs a query with a match in the gallery"
            )
        labels[IN_BRACKETS] = "95 % confidence interval (bootstrap over identities)"
        return labels


def retrieve(
    embeddings: np.ndarray,
    gallery: np.ndarray,
    query: np.ndarray,
    identities: np.ndarray,
    cameras: np.ndarray | None = None,
) -> Retrieval:
    """Rank the gallery for every query. Memory: the unit embeddings and one block of similarities.

    Args:
        embeddings: [N, D] of any float type (need not be normalised); a zero one resembles nothing.
        gallery, query: int64 indices of images; an image may be in both, and is not compared with itself.
        identities: int64 [N]. cameras: int64 [N]; None: not known, all images count.

    UserError: an empty gallery, no queries, an embedding that is not finite.
    """
    for name, rows in (("gallery", gallery), ("query", query)):
        if not len(rows):
            raise UserError(f"retrieval: there are 0 {name} images, give at least one")
    units = finite_unit_rows(embeddings, gallery, "retrieval")
    by_identity = np.argsort(identities[gallery], kind="stable")
    ends = [
        np.searchsorted(identities[gallery][by_identity], identities[query], side)
        for side in ("left", "right")
    ]
    precision = np.empty(len(query))
    rank = np.empty(len(query), np.int64)
    at_once = max(1, _BLOCK // len(gallery))
    for start in range(0, len(query), at_once):
        images = query[start : start + at_once]
        similarity = finite_unit_rows(embeddings, images, "retrieval") @ units.T
        similarity *= _STEP
        np.rint(similarity, out=similarity)
        for place, (image, row) in enumerate(zip(images.tolist(), similarity), start=start):
            same = by_identity[ends[0][place] : ends[1][place]]
            counts = gallery[same] != image
            if cameras is not None:
                counts &= cameras[gallery[same]] != cameras[image]
            right = row[same[counts]]
            row[same] = -np.inf
            precision[place], rank[place] = _ranked(right, row)
    matched = rank > 0
    left_out = int(np.count_nonzero(~matched))
    notes = () if matched.any() else ("No query has a right image in the gallery: no mAP and no recall.",)
    return Retrieval(
        precision[matched], rank[matched], identities[query][matched], left_out, len(gallery), notes
    )


def _ranked(right: np.ndarray, wrong: np.ndarray) -> tuple[float, int]:
    """Compute a query's average precision, and the rank of its best right image, from the similarities of
    right and wrong images [n]; 0 and 0 where there is no right one."""
    if not len(right):
        return 0.0, 0
    right = np.sort(right)
    wrong = np.sort(wrong[wrong >= right[0]])  # those below the last right one do not count
    right_above = len(right) - np.searchsorted(right, right)
    wrong_above = len(wrong) - np.searchsorted(wrong, right)
    return float(np.mean(right_above / (right_above + wrong_above))), 1 + int(wrong_above[-1])
