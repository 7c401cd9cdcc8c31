"""Test by embeddings whether people took part in a training: whether a network treats them otherwise than strangers.

    nearest   the cosine with the nearest class centre. Trained people are near their own; those whose centre is gone
              are farther from the others than strangers are, since the training has pushed them away
    alike     the mean cosine with the other images of the same person

An AUC of 0.5 tells nothing; 1 or 0 tells of each image whether its person was trained on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from plsc.evaluation.intervals import bootstrap_groups, wilson


class People(NamedTuple):
    """Images of some people: embeddings float32 [N, D] of length 1, and the person of each, any numbers [N]."""

    emb_ND: np.ndarray
    person_N: np.ndarray


class Auc(NamedTuple):
    """The share of pairs of a tested image and a stranger's in which the tested one has the higher score, with the
    bounds of its 95 % confidence interval."""

    value: float
    low: float
    high: float


def nearest(people: People, blocks: Iterable[np.ndarray]) -> np.ndarray:
    """Compute the cosine of each image with the nearest centre: float64 [N]. blocks: the centres, [n, D] each."""
    best = np.full(len(people.emb_ND), -1.0)
    for centres in blocks:
        lengths = np.linalg.norm(centres, axis=1, keepdims=True)
        cosines = people.emb_ND @ (centres / np.maximum(lengths, np.finfo(np.float32).tiny)).T
        np.maximum(best, cosines.max(axis=1, initial=-1), out=best)
    return best


def alike(people: People) -> np.ndarray:
    """Compute the mean cosine of each image with the others of its person: float64 [N], NaN without another."""
    _, person, counts = np.unique(people.person_N, return_inverse=True, return_counts=True)
    emb = people.emb_ND.astype(np.float64)
    sums = np.zeros((len(counts), emb.shape[1]))
    np.add.at(sums, person, emb)
    others = counts[person] - 1
    own = (emb * emb).sum(axis=1)
    return np.where(others, ((emb * sums[person]).sum(axis=1) - own) / np.maximum(others, 1), np.nan)


def auc(tested_N: np.ndarray, person_N: np.ndarray, strangers_M: np.ndarray) -> Auc | None:
    """Compare the scores of tested images with those of strangers; None where one side has none (NaN).

    The interval is over the tested people, over their images if there is one person; Wilson's where all resamples agree, as
    those of a single image do. The strangers are taken as given.
    """
    known = ~np.isnan(tested_N)
    strangers = np.sort(strangers_M[~np.isnan(strangers_M)])
    if not known.any() or not len(strangers):
        return None
    sides = [np.searchsorted(strangers, tested_N[known], side) for side in ("left", "right")]
    share_N = np.mean(sides, axis=0) / len(strangers)
    person = person_N[known]
    if len(np.unique(person)) == 1:
        person = np.arange(len(person))
    value = float(share_N.mean())
    low, high = bootstrap_groups(share_N[:, np.newaxis], person)[:, 0].tolist()
    if low == high:
        low, high = wilson(value, len(np.unique(person)))
    return Auc(value, low, high)
