"""Find wrong labels by the embeddings that a trained network gives its own training samples.

A sample is compared with the mean of the other samples of its class, so that it does not vote for its own
label, and with the means of all other classes. Try it: noise = find_noise(embeddings, labels, num_classes).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from plsc.evaluation.search import finite_unit_rows, search

LIMIT = 3.0  # deviations beyond the median from which on a label is taken for wrong
LEAD = 0.25  # deviations by which the nearest class must lead the next one to be proposed as the label
_ROWS = 65_536  # samples that are compared with their own class at once


class Distances(NamedTuple):
    """How the samples lie to their own class and to the others, [N] each."""

    own: np.ndarray  # cosine with the mean of the other samples of the class; NaN: there are none
    other: np.ndarray  # cosine with the nearest other class
    lead: np.ndarray  # by how much that is more than with the next one
    nearest: np.ndarray  # the nearest other class, int64


class LabelNoise(NamedTuple):
    """The wrong labels, the most certain first.

    Attributes:
        samples: indices, int64 [W].
        classes: the nearest other class of each, int64 [W].
        scores: by how many deviations of the ordinary samples each is nearer to that class, float64 [W].
        relabel: whether that class is certain enough to be the label; the other samples are to be dropped, bool [W].
        undecided: whether the class has two samples, so that nothing shows which of them is wrong, bool [W].
        score_N: of all samples; NaN: not known.
    """

    samples: np.ndarray
    classes: np.ndarray
    scores: np.ndarray
    relabel: np.ndarray
    undecided: np.ndarray
    score_N: np.ndarray


def find_noise(
    embeddings: np.ndarray,
    labels: np.ndarray,
    num_classes: int,
    ranges: Sequence[tuple[int, int]] | None = None,
) -> LabelNoise:
    """Find wrong labels.

    Args:
        embeddings: [N, D], of any length; samples of zeros are left out.
        labels: int64 [N].
        ranges: [start, stop) of classes with a softmax of their own; classes of two are not compared.
    """
    unit = _unit(embeddings)
    ranges = ranges or [(0, num_classes)]
    sums = np.zeros((num_classes, unit.shape[1]), np.float32)
    np.add.at(sums, labels, unit)
    distances = _distances(unit, labels, sums, ranges)
    wrong, score_N, deviation = _wrong(distances)
    twins = _twins(labels, distances, sums, ranges)
    wrong &= distances.nearest != twins[labels]  # a sample of the other name of its class is no error
    samples = np.flatnonzero(wrong)
    samples = samples[np.argsort(-score_N[samples], kind="stable")]
    relabel = distances.lead[samples] > LEAD * deviation
    counts = np.bincount(labels[~np.isnan(distances.own)], minlength=num_classes)
    undecided = counts[labels[samples]] == 2
    return LabelNoise(samples, distances.nearest[samples], score_N[samples], relabel, undecided, score_N)


def _unit(rows: np.ndarray) -> np.ndarray:
    return finite_unit_rows(rows, np.arange(len(rows)), "label noise")


def _distances(
    unit: np.ndarray, labels: np.ndarray, sums: np.ndarray, ranges: Sequence[tuple[int, int]]
) -> Distances:
    """Compare all samples with the classes, whose embeddings add up to `sums` [C, D]."""
    own = np.empty(len(labels), np.float32)
    for start in range(0, len(labels), _ROWS):
        rows = slice(start, start + _ROWS)
        others = sums[labels[rows]] - unit[rows]
        own[rows] = np.einsum("nd,nd->n", _unit(others), unit[rows])
    alone = np.bincount(labels[unit.any(axis=1)], minlength=len(sums)) < 2
    own[alone[labels] | ~unit.any(axis=1)] = np.nan
    means = _unit(sums)
    other, lead = np.empty((2, len(labels)), np.float32)
    nearest = np.empty(len(labels), np.int64)
    for start, stop in ranges:
        rows = np.flatnonzero((labels >= start) & (labels < stop))
        cosine, place = search(unit[rows], means[start:stop], 3)
        cosine[place + start == labels[rows, np.newaxis]] = -np.inf
        order = np.argsort(-cosine, axis=1, kind="stable")[:, :2]
        first, second = np.take_along_axis(cosine, order, 1).T
        nearest[rows] = np.take_along_axis(place, order, 1)[:, 0] + start
        other[rows] = first
        lead[rows] = first - second
    return Distances(own, other, lead, nearest)


def _wrong(distances: Distances) -> tuple[np.ndarray, np.ndarray, float]:
    """Find the samples whose label is wrong, bool [N]; their scores [N]; one deviation, as a cosine.

    The score says by how many deviations (other - own) is above its median. Wrong labels lie above, so the
    deviation is that
    of the samples below: from the 16 % quantile to the median.
    """
    nearer_N = (distances.other - distances.own).astype(np.float64)
    known = nearer_N[~np.isnan(nearer_N)]
    low, median = np.quantile(known, [0.1587, 0.5]) if len(known) else (0.0, 0.0)
    deviation = max(median - low, 1e-6)
    score_N = (nearer_N - median) / deviation
    return (score_N > LIMIT) & (nearer_N > 0), score_N, deviation


def _twins(
    labels: np.ndarray, distances: Distances, sums: np.ndarray, ranges: Sequence[tuple[int, int]]
) -> np.ndarray:
    """Find for each class the one that may be the same under another name, int64 [C]; -1: none.

    Each of the two is the other's nearest, and their means are more alike than their samples are to their own
    means. One wrong label draws the mean of a class of two halfway to the class that its sample is of. So the
    two samples count instead: the class must be the nearest of both, and the cosine is that of the one which
    is less like it.
    """
    means = _unit(sums)
    known = ~np.isnan(distances.own)
    counts = np.bincount(labels[known], minlength=len(sums))
    spread = np.bincount(labels[known], distances.own[known], len(sums)) / np.maximum(counts, 1)
    spread[counts == 0] = np.inf  # a class of one sample has no twin
    alike = np.empty(len(sums), np.float32)  # cosine of each class with its nearest
    nearest = np.empty(len(sums), np.int64)
    for start, stop in ranges:
        cosine, place = search(means[start:stop], means[start:stop], 2)
        line = np.arange(stop - start)
        column = (place[:, 0] == line).astype(int)
        alike[start:stop] = cosine[line, column]
        nearest[start:stop] = start + place[line, column]
    pairs = np.flatnonzero(known & (counts[labels] == 2))
    agrees = distances.nearest[pairs] == nearest[labels[pairs]]
    np.minimum.at(alike, labels[pairs], np.where(agrees, distances.other[pairs], -np.inf))
    twins = np.full(len(sums), -1)
    line = np.arange(len(sums))
    for first in np.flatnonzero((nearest[nearest] == line) & (line < nearest)).tolist():
        second = int(nearest[first])
        if min(alike[first], alike[second]) > (spread[first] + spread[second]) / 2:
            twins[[first, second]] = second, first
    return twins
