"""Measure the threshold of a gallery: the cosine that the nearest person needs to be named.

    threshold = measure(*store.all_pictures(), rate=0.01, prior=0.363)
    print(threshold.describe())

A stranger is named if any of N people is nearer than the threshold. One in a hundred strangers is, if one
comparison of a face with a person exceeds it with the probability 1 - 0.99 ** (1 / N). The comparisons of a
gallery's pictures with its other people show that tail. People whom the network was trained on are not
compared: they are less alike than strangers.

**The tail.** The distance d = 1 - cosine ends at 0, and near an end a tail is a power of the distance (the
Weibull case of extreme value theory): P(distance < d) = share * (d / edge) ** exponent. The edge is a
quantile. The exponent follows from the median of log(edge / d) below it, which few outliers cannot move.
Hill's estimate takes the mean ("A simple general approach to inference about the tail of a distribution",
1975).

**The prior.** The threshold that is published with a network is for two pictures; about one comparison in 500
of a stranger with a person exceeds SFace's. The two estimates of log d are averaged by their precision. The
prior's has the difference of the two in its variance, so that a prior that the gallery contradicts loses its
weight. A few people say little, and the prior stands for them.

**What looks like one person.** A picture that is much nearer to another person than the threshold is left out
and reported: misfiled, if it is unlike the person's other pictures; else the two people are one, or twins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from plsc.evaluation.search import search, unit_rows

RATE = 0.01
"""The share of strangers who are named, unless another one is asked for."""
LEAST_PEOPLE = 10
"""They measure the threshold where the network has none."""
FEWEST_FOUND = 0.5
"""A gallery that finds a smaller share of its own people is of no use."""
_MOST_COSINES = 1 << 28  # of a measurement
_NEAREST = 50  # people who are compared with a picture
_PRIOR_SHARE = 1 / 500  # of the comparisons that exceed a network's own threshold
_PRIOR_EXPONENT, _PRIOR_TAIL = 24.0, 10.0  # SFace's, and in how many independent comparisons' place it is
_PRIOR_DEVIATION = 0.15  # of log d
_BEND = 0.015  # deviation of log d for each unit of log(share) that the power law is extended by
_OF_ONE = 3.0  # deviation of log d for a single person, falling with the number of people
_FITTED = 80  # comparisons at least
_APART = 0.8  # of the threshold's distance: one person
_MOST_ALIKE = 20  # lines
_SMALLEST = 1e-6  # distance that is told from 0


@dataclass(frozen=True)
class GalleryThreshold:
    """The cosine that the nearest person needs to be named, and what was measured with it."""

    rate: float = RATE
    """The share of strangers who shall be named."""
    cosine: float | None = None
    """None: not known, so nobody is named."""
    prior: float | None = None
    """The network's own threshold for two pictures; None: not known."""
    size: int = 0
    """How many people the gallery has."""
    people: int = 0
    """Whose pictures were compared with the others; the cosine of fewer than 2 is the prior's."""
    strangers: float | None = None
    """The share of these pictures that would be named if their own person were not in the gallery."""
    found: float | None = None
    """The share of its own people that the gallery finds: each picture is searched among the person's other
    pictures and all other people. None: nobody has two pictures."""
    alike: list[tuple[str, str]] = field(default_factory=list)
    """A picture (person/picture) or a person, and whom else each looks like; the most alike first."""

    @property
    def finds_too_few(self) -> bool:
        """Whether less than half of the gallery's own people are found."""
        return self.found is not None and self.found < FEWEST_FOUND

    def describe(self) -> str:
        """Describe it in a line, and in a further one for each pair that looks like one person."""
        if self.cosine is None:
            text = (
                f"nobody is named: the network has no threshold, and {LEAST_PEOPLE} people whom it was not "
                "trained on would measure one"
            )
        else:
            named = "not measured" if self.strangers is None else f"{self.strangers:.1%}"
            found = "not measured, nobody has two pictures" if self.found is None else f"{self.found:.1%}"
            strangers = f"strangers named: {named} ({self.rate:.1%} asked)"
            text = f"a name needs {self.cosine:.2f}; {strangers}; own people found: {found}"
        if self.finds_too_few:
            text += "\nfewer than half of its own people would be found: the network cannot tell them apart"
        return "\n".join([text, *(f"{one} looks like {other}" for one, other in self.alike)])


def measure(
    vectors: np.ndarray,
    owners: Sequence[str],
    pictures: Sequence[str],
    measures: np.ndarray,
    rate: float,
    prior: float | None,
) -> GalleryThreshold:
    """Measure a gallery.

    Args:
        vectors: embeddings of length 1, float32 [n, D], those of a person one after the other.
        owners: whose each is, n names.
        pictures: n names of pictures.
        measures: bool [n], False for people whom the network was trained on.
        rate: the share of strangers who shall be named.
        prior: the network's own threshold for two pictures, or None.
    """
    if not len(vectors):
        return GalleryThreshold(rate, prior, prior)
    names = [*dict.fromkeys(owners)]
    numbers = {name: number for number, name in enumerate(names)}
    owner = np.array([numbers[name] for name in owners])
    comparisons = _Comparisons(vectors, owner, np.asarray(measures, bool))
    share = 1 - (1 - rate) ** (1 / len(names))  # of the comparisons that may exceed the threshold
    alike = []
    for wrong in (comparisons.misfiled, comparisons.same_people):
        cosine = comparisons.threshold(share, prior, wide=True)
        if cosine is not None:
            alike += wrong(1 - _APART * (1 - cosine))
    cosine = comparisons.threshold(share, prior)
    lines = [
        (f"{names[owner[one]]}/{pictures[one]}" if is_picture else names[one], names[other])
        for _, one, other, is_picture in sorted(alike, key=lambda pair: -pair[0])
    ]
    people = comparisons.measuring_people
    if cosine is None:
        return GalleryThreshold(rate, size=len(names), people=people, alike=lines[:_MOST_ALIKE])
    strangers, found = comparisons.strangers(cosine), comparisons.found(cosine)
    return GalleryThreshold(rate, cosine, prior, len(names), people, strangers, found, lines[:_MOST_ALIKE])


class _Comparisons:
    """The pictures of a gallery, each with the people who are nearest to it."""

    def __init__(self, vectors: np.ndarray, owner: np.ndarray, measures: np.ndarray):
        self._vectors, self._owner = vectors, owner
        self._people = int(owner[-1]) + 1
        self._used = np.ones(len(vectors), bool)
        self._same: set[tuple[int, int]] = set()
        most = max(1000, _MOST_COSINES // self._people)
        self._asked = choose_evenly(owner, most)
        self._measures = measures[self._asked]
        self.measuring_people = len(np.unique(owner[self._asked][self._measures]))
        self._compare()

    def _compare(self) -> None:
        """Compare the pictures that are asked with the means of the pictures that are used."""
        used = np.flatnonzero(self._used)
        sums = np.zeros((self._people, self._vectors.shape[1]), np.float32)
        np.add.at(sums, self._owner[used], self._vectors[used])
        self._counts = np.bincount(self._owner[used], minlength=self._people)
        asked = self._vectors[self._asked]
        self._cosines, self._met = search(asked, unit_rows(sums), _NEAREST)
        self._whose = self._owner[self._asked]
        others = unit_rows(sums[self._whose] - asked)
        own = np.einsum("nd,nd->n", asked, others)
        self._own = np.where(self._counts[self._whose] > 1, own, -1.0)  # with the person's other pictures
        self._other = self._used[self._asked, np.newaxis] & (self._met != self._whose[:, np.newaxis])
        for one, other in self._same:
            for mine, theirs in ((one, other), (other, one)):
                self._other[self._whose == mine] &= self._met[self._whose == mine] != theirs

    def threshold(self, share: float, prior: float | None, wide: bool = False) -> float | None:
        """Find the cosine that a share of the comparisons of strangers exceeds. wide: look at more of the
        tail, as long as outliers may be in it."""
        cosines = self._cosines[self._other & self._measures[:, np.newaxis]]
        if prior is not None:  # for two pictures; here any of the gallery's people may be the nearest
            expected = math.log(max(1 - prior, _SMALLEST)) + math.log(share / _PRIOR_SHARE) / _PRIOR_EXPONENT
        if self.measuring_people < (LEAST_PEOPLE if prior is None else 2) or not len(cosines):
            return None if prior is None else max(-1.0, 1 - math.exp(expected))
        searches = int(np.count_nonzero(self._measures & self._used[self._asked]))
        count = max(len(cosines), searches * (self._people - 1))
        fitted = (4 if wide else 1) * max(_FITTED, 10 * share * count)
        fitted = int(min(fitted, max(1, count // 4), len(cosines) - 1)) or 1
        distances = np.sort(np.maximum(1 - cosines.astype(np.float64), _SMALLEST))
        edge = distances[min(fitted, len(distances) - 1)]
        # Ann is as near to Bob as Bob to Ann, and a person's pictures are as near to others as each other.
        independent = fitted * self.measuring_people / (2 * searches)
        slope = np.median(np.log(edge / distances[:fitted])) / math.log(2)
        exponent = (independent + _PRIOR_TAIL) / (independent * slope + _PRIOR_TAIL / _PRIOR_EXPONENT)
        beyond = max(0.0, math.log(fitted / count / share))
        log_distance = math.log(edge) - beyond / exponent
        if prior is not None:
            variance = (1 / independent + beyond**2 / (independent + _PRIOR_TAIL)) / exponent**2
            variance += (_BEND * beyond) ** 2 + (_OF_ONE / self.measuring_people) ** 2
            of_prior = _PRIOR_DEVIATION**2 + (log_distance - expected) ** 2
            log_distance = (log_distance / variance + expected / of_prior) / (1 / variance + 1 / of_prior)
        return max(-1.0, 1 - math.exp(log_distance))

    def misfiled(self, cosine: float) -> list[tuple[float, int, int, bool]]:
        """Leave out the pictures that are nearer to another person than `cosine`, and nearer than to their
        own, unless more than half of the person's pictures are: cosine, picture, other person, True."""
        near = self._other & (self._cosines > cosine)
        found = []
        like = self._pairs(near)
        for place in np.flatnonzero(near.any(axis=1) & (self._counts[self._whose] > 1)):
            best = np.flatnonzero(near[place])[0]
            picture, other = int(self._asked[place]), int(self._met[place, best])
            person, similarity = int(self._whose[place]), float(self._cosines[place, best])
            of_person = int(np.count_nonzero(self._whose == person))
            if self._own[place] < similarity and 2 * len(like[person, other]) <= of_person:
                found.append((similarity, picture, other, True))
        self._used[[picture for _, picture, *_ in found]] = False
        self._compare()
        return found

    def same_people(self, cosine: float) -> list[tuple[float, int, int, bool]]:
        """Leave out the comparisons of people, a picture of whom is nearer to the other than `cosine`:
        cosine, person, other person, False."""
        pairs: dict[tuple[int, int], float] = {}
        for (one, other), cosines in self._pairs(self._other & (self._cosines > cosine)).items():
            pair = min(one, other), max(one, other)
            pairs[pair] = max(pairs.get(pair, -1.0), *cosines)
        if len(pairs) > self._people:  # the network finds nearly everybody alike: nobody stands out
            return []
        self._same = {*pairs}
        self._compare()
        return [(similarity, other, one, False) for (one, other), similarity in pairs.items()]

    def _pairs(self, near: np.ndarray) -> dict[tuple[int, int], list[float]]:
        """Collect the cosines of comparisons, bool as _cosines, by person and other person."""
        pairs: dict[tuple[int, int], list[float]] = {}
        for place, column in zip(*np.nonzero(near)):
            pair = int(self._whose[place]), int(self._met[place, column])
            pairs.setdefault(pair, []).append(float(self._cosines[place, column]))
        return pairs

    def _nearest_other(self) -> np.ndarray:
        return np.where(self._other, self._cosines, -1.0).max(axis=1)

    def strangers(self, cosine: float) -> float | None:
        """Return the share of measuring pictures that are named without their own person."""
        asked = self._measures & self._used[self._asked] & self._other.any(axis=1)
        return float(np.mean(self._nearest_other()[asked] > cosine)) if asked.any() else None

    def found(self, cosine: float) -> float | None:
        """Return the mean over people of the share of their pictures that are found among the others."""
        asked = self._used[self._asked] & (self._counts[self._whose] > 1)
        if not asked.any():
            return None
        found = (self._own > cosine) & (self._own > self._nearest_other())
        of_person = np.bincount(self._whose[asked], minlength=self._people)
        hits = np.bincount(self._whose[asked], found[asked], minlength=self._people)
        return float(np.mean(hits[of_person > 0] / of_person[of_person > 0]))


def choose_evenly(people: np.ndarray, most: int) -> np.ndarray:
    """Choose at most `most` pictures: one of everybody, then a second one, and so on.

    people: [N], whom each picture shows, text or numbers. Returns indices of pictures, int64, increasing.
    """
    numbers = np.unique(people, return_inverse=True)[1]
    order = np.argsort(numbers, kind="stable")
    counts = np.bincount(numbers)
    rank = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(order[np.argsort(rank, kind="stable")[:most]])
