"""Compare the embeddings of a gallery's pictures: which are of somebody else than their name says, and who,
or what, is there twice.

alike = compare(embeddings, owners)
wrong_people(alike, owners, threshold)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from plsc.evaluation.search import search
from plsc.utils.vectors import unit_rows

FEWEST = 20  # pictures that show how like their person they are
LEAST_SHARE = 0.05  # of the other people, who are more like a picture of the wrong person
# Expected share of different people among pairs that are named one person, and of right pictures among those
# that are named another person's, if the fits hold. The latter are refused, and of a weak network their tail
# is longer than a normal one's.
FALSE_PAIRS = 0.05
FALSE_PICTURES = 0.02
FEWEST_PEOPLE = 10
_QUARTILE = 0.6745  # deviations from the median to a quartile of a normal distribution
_COHORT = 10_000  # people that a picture is compared with, to count who is more like it than its own person
_SAME_COSINE = 0.98  # and _SAME_BITS: of two copies of a picture, encoded or resized anew
_SAME_BITS = 3


class Alike(NamedTuple):
    """How a picture is like its own person and others, [N] each."""

    own: np.ndarray
    """Cosine with the mean of the person's other pictures; NaN: there are none."""
    share: np.ndarray
    """Of the other people, those that are at least as like it; NaN where `own` is."""
    nearest: np.ndarray
    """The most similar other person, int64; -1: there is nobody else."""
    other: np.ndarray
    """Cosine with that person."""


def compare(embeddings: np.ndarray, owners: np.ndarray) -> Alike:
    """Compare pictures with their own person, without themselves, and with all others (of very many with
    10,000, evenly spaced).

    embeddings: float32 [N, D] of length 1. owners: int64 [N], numbers of the people.
    """
    sums = _sums(embeddings, owners)
    rest = sums[owners] - embeddings
    lengths = np.linalg.norm(rest, axis=1)
    alone = np.bincount(owners)[owners] < 2
    own = np.einsum("nd,nd->n", rest, embeddings) / np.maximum(lengths, 1e-12)
    own[alone] = np.nan
    present = np.unique(owners)
    cohort = present[np.linspace(0, len(present) - 1, min(len(present), _COHORT)).astype(np.int64)]
    means = unit_rows(sums[cohort], np.linalg.norm(sums[cohort], axis=1))
    share = np.full(len(owners), np.nan)
    nearest = np.full(len(owners), -1)
    other = np.full(len(owners), -1.0)
    for start in range(0, len(owners), 1024):
        rows = slice(start, start + 1024)
        cosine = embeddings[rows] @ means.T
        cosine[owners[rows, np.newaxis] == cohort] = -np.inf
        count = np.isfinite(cosine).sum(axis=1)
        share[rows] = (cosine >= own[rows, np.newaxis]).sum(axis=1) / np.maximum(count, 1)
        best = np.argmax(cosine, axis=1)
        other[rows] = cosine[np.arange(len(best)), best]
        nearest[rows] = np.where(count > 0, cohort[best], -1)
    share[alone] = np.nan
    return Alike(own, share, nearest, other)


def wrong_people(alike: Alike, owners: np.ndarray, threshold: float | None) -> np.ndarray:
    """Find pictures that show somebody else than the others of their person: bool [N].

    How like pictures are to their own person follows about a normal distribution, which is fitted by median
    and lower quartile: some wrong ones do not change these. The least alike are named as far as at most
    FALSE_PICTURES of them are expected among right ones (Benjamini and Hochberg 1995, J. R. Stat. Soc. B
    57(1)), so a network that tells people apart badly names few. Besides, a share LEAST_SHARE of the other
    people is more like the picture, and it is below the threshold of pairs, where that is known. Two pictures
    of a person do not show which of them is wrong, and fewer than FEWEST_PEOPLE people not what is usual.
    """
    wrong = np.zeros(len(owners), bool)
    judged = np.flatnonzero(np.bincount(owners)[owners] > 2)
    if len(judged) < FEWEST or len(np.unique(owners)) < FEWEST_PEOPLE:
        return wrong
    own = alike.own[judged].astype(np.float64)
    quartile, middle = np.quantile(own, [0.25, 0.5])
    deviations = (middle - own) / max((middle - quartile) / _QUARTILE, 1e-6)
    chance = np.array([0.5 * math.erfc(each / math.sqrt(2)) for each in deviations.tolist()])
    wrong[judged] = _improbable(chance, FALSE_PICTURES)
    below = alike.own < (1.0 if threshold is None else threshold)
    return wrong & below & (alike.share > LEAST_SHARE)


def tells_apart(alike: Alike, wrong: np.ndarray | None = None) -> bool:
    """Say whether the network knows these people so well that a picture of the wrong person is surely one.

    Of pictures that are not named wrong, bool [N], at most a share FALSE_PICTURES may be more like
    LEAST_SHARE of the other people.
    """
    known = ~np.isnan(alike.share)
    if wrong is not None:
        known &= ~wrong
    return bool(known.any() and np.mean(alike.share[known] > LEAST_SHARE) <= FALSE_PICTURES)


def _improbable(chance: np.ndarray, false: float) -> np.ndarray:
    """Choose of probabilities float64 [n] the smallest, of which at most a share `false` is expected by
    chance: bool [n]."""
    order = np.argsort(chance, kind="stable")
    passed = np.flatnonzero(chance[order] * len(chance) <= false * np.arange(1, len(chance) + 1))
    found = np.zeros(len(chance), bool)
    found[order[: passed[-1] + 1 if len(passed) else 0]] = True
    return found


def mean_embeddings(embeddings: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """Sum the embeddings of each person, float32 [people, D] of length 1."""
    sums = _sums(embeddings, owners)
    return unit_rows(sums, np.linalg.norm(sums, axis=1))


def _sums(embeddings: np.ndarray, owners: np.ndarray) -> np.ndarray:
    sums = np.zeros((int(owners.max(initial=-1)) + 1, embeddings.shape[1]), np.float32)
    np.add.at(sums, owners, embeddings)
    return sums


def same_people(embeddings: np.ndarray, owners: np.ndarray) -> list[tuple[int, int, float]]:
    """Find people who are in the gallery under two names: number, number, cosine; the surest first. owners:
    int64 [N], numbers of the people.

    Each is the other's nearest. How far people are from their nearest follows about a Weibull distribution,
    the one of the smallest of many distances, which is fitted by the quartiles. A pair is named as far as at
    most FALSE_PAIRS of the named ones are expected among people who are different, as in `wrong_people`.
    """
    numbers, owners = np.unique(owners, return_inverse=True)
    means = mean_embeddings(embeddings, owners)
    people = len(means)
    if people < FEWEST_PEOPLE:
        return []
    cosine, place = search(means, means, 2)
    column = (place[:, 0] == np.arange(people)).astype(int)
    cosine = cosine[np.arange(people), column].astype(np.float64)
    nearest = place[np.arange(people), column]
    distance = np.maximum(1 - cosine, 1e-6)
    near, far = np.quantile(distance, [0.25, 0.75])
    exponent = math.log(math.log(4) / math.log(4 / 3)) / max(math.log(far / near), 1e-6)
    chance = -np.expm1(-math.log(4) * (distance / far) ** exponent)
    found = np.flatnonzero(_improbable(chance, FALSE_PAIRS))
    return [
        (int(numbers[person]), int(numbers[nearest[person]]), float(cosine[person]))
        for person in found[np.argsort(chance[found], kind="stable")].tolist()
        if nearest[nearest[person]] == person and person < nearest[person]
    ]


def same_pictures(
    embeddings: np.ndarray, owners: np.ndarray, bits: Sequence[str | None]
) -> list[tuple[int, int]]:
    """Find copies of a picture, also such that were encoded or resized anew: pairs of pictures, the copy and
    another one. A copy is in one pair.

    Both embeddings and the bits of the pixels (plsc.apps.serving.gallery.quality.Look) are nearly the same.
    Of two people's the copy is the one that is less like its person's other pictures.
    """
    if len(owners) < 2:
        return []
    cosine, place = search(embeddings, embeddings, 4)
    own = compare(embeddings, owners).own
    originals: dict[int, int] = {}
    for first, second in _near_pairs(cosine, place):
        one, other = bits[first], bits[second]
        if one is None or other is None or _differing_bits(one, other) > _SAME_BITS:
            continue
        # Somebody's only picture says nothing for itself.
        copy_first = np.nan_to_num(own[first], nan=-1) < np.nan_to_num(own[second], nan=-1)
        copy, original = (first, second) if copy_first else (second, first)
        originals.setdefault(copy, original)
    return [*originals.items()]


def _near_pairs(cosine: np.ndarray, place: np.ndarray) -> list[tuple[int, int]]:
    """Return the pairs of which one is near the other. Of many copies the last ones are not among the first
    one's nearest."""
    one, column = np.nonzero(cosine > _SAME_COSINE)
    pairs = np.sort(np.stack([one, place[one, column]], axis=1), axis=1)
    return [(first, second) for first, second in np.unique(pairs, axis=0).tolist() if first < second]


def _differing_bits(one: str, other: str) -> int:
    return (int(one, 16) ^ int(other, 16)).bit_count()
