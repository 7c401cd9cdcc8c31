"""Measure a gallery's threshold: the cosine above which the nearest person is named.

    threshold = measure(*store.all_pictures(), rate=0.01, prior=0.363)
    print(threshold.describe())

This threshold is for a picture and all N people in a gallery. A run's verification threshold is for two
pictures (`Verification.threshold` in verification.py). It is only the prior here.

A stranger is named if the cosine with any one among N people exceeds the threshold. If one stranger in a
hundred may be named, a single comparison between a face and a person exceeds the threshold with this
probability: 1 - 0.99 ** (1 / N). This tail is estimated by comparing the gallery's pictures with its other
people. People in the network's training set are not used, because they are less similar to each other than
strangers are.

**The tail.** The distance d = 1 - cosine is bounded below by 0. Near such a bound, the tail is a power of the
distance (the Weibull case of extreme value theory): P(distance < d) = share * (d / edge) ** exponent. The
edge is a quantile. The exponent follows from the median log(edge / d) for the distances below the edge. A
few outliers cannot move this median. Hill's estimate uses the mean instead ("A simple general approach to
inference about the tail of a distribution", 1975).

**The prior.** The threshold that is published with a network is for two pictures. About one comparison in 500
between a stranger and a person exceeds SFace's threshold. The result is the mean of two estimates for log d,
from the tail and from the prior, weighted by their precision. The prior's variance contains the two
estimates' squared difference. So the prior loses its weight if the gallery contradicts it. A small gallery
measures little, so its threshold is mostly the prior's.

**Suspected mistakes.** A picture is suspicious if it is much nearer to another person than the threshold. If
it is also unlike its person's other pictures, it is reported as misfiled. It is not used for the measurement,
and does not count for its person's mean. Otherwise the two people may be one person or twins. They are
reported, and are not compared with each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from plsc.evaluation.search import search, unit_rows

RATE = 0.01
"""By default, this share of strangers may be named."""
LEAST_PEOPLE = 10
"""So many people are needed to measure a threshold if the network has none."""
FEWEST_FOUND = 0.5
"""A useful gallery finds at least this share of its people."""
_MOST_COSINES = 1 << 28  # most cosines in a measurement
_NEAREST = 50  # how many people a picture is compared with
_PRIOR_SHARE = 1 / 500  # share of comparisons that exceed a network's own threshold
# SFace's exponent, and for how many independent comparisons it counts
_PRIOR_EXPONENT, _PRIOR_TAIL = 24.0, 10.0
_PRIOR_DEVIATION = 0.15  # the prior's standard deviation in log d
_BEND = 0.015  # standard deviation in log d per unit of log(share) in extrapolation by the power law
_OF_ONE = 3.0  # standard deviation in log d for one person, divided by the people count if there are more
_FITTED = 80  # least comparisons in the fitted tail
_APART = 0.8  # pictures nearer than this share of the threshold's distance look like one person
_MOST_ALIKE = 20  # most reported lines
_SMALLEST = 1e-6  # smaller distances count as this one


@dataclass(frozen=True)
class GalleryThreshold:
    """The cosine above which the nearest person is named, and the rates that were measured with it."""

    rate: float = RATE
    """The accepted share of strangers who are named."""
    cosine: float | None = None
    """The threshold. If it is None, it is unknown and nobody is named."""
    prior: float | None = None
    """The network's own threshold for two pictures. None if it is unknown."""
    size: int = 0
    """How many people the gallery contains."""
    people: int = 0
    """How many people's pictures were compared with the others. If it is below 2, the cosine follows
    from the prior alone."""
    strangers: float | None = None
    """The share of these people's pictures that would be named if their own person were not in the gallery.
    None if it was not measured."""
    found: float | None = None
    """The share of its people that the gallery finds. Each picture is searched among the person's other
    pictures and all other people. None if nobody has two pictures."""
    alike: list[tuple[str, str]] = field(default_factory=list)
    """Pairs that look like one person, most similar first. The first entry is a picture (person/picture) or a
    person, and the second is another person."""
    misfiled: list[tuple[str, str]] = field(default_factory=list)
    """Person and picture of each picture that looks misfiled. It does not count for the person's mean."""

    @property
    def finds_too_few(self) -> bool:
        """Whether the gallery finds fewer than half its people."""
        return self.found is not None and self.found < FEWEST_FOUND

    def describe(self) -> str:
        """Return a line about the threshold, and a line for each pair that looks like one person."""
        if self.cosine is None:
            text = (
                f"nobody is named: the network has no threshold; {LEAST_PEOPLE} people whom it was not "
                "trained on are needed to measure one"
            )
        else:
            named = "not measured" if self.strangers is None else f"{self.strangers:.1%}"
            found = "not measured, nobody has two pictures" if self.found is None else f"{self.found:.1%}"
            strangers = f"strangers named: {named} (target {self.rate:.1%})"
            text = f"threshold {self.cosine:.2f}; {strangers}; enrolled people found: {found}"
        if self.finds_too_few:
            text += "\nfewer than half of the enrolled are found: the network cannot tell these people apart"
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
        vectors: unit embeddings, float32 [n, D]. A person's embeddings are consecutive.
        owners: each embedding's person, n names.
        pictures: each embedding's picture, n names.
        measures: whether to use each picture, bool [n]. False for people in the network's training set.
        rate: accepted share of strangers who are named.
        prior: the network's own threshold for two pictures, or None.

    Returns the threshold with the measured rates and the suspected mistakes.
    """
    if not len(vectors):
        return GalleryThreshold(rate, prior, prior)
    names = [*dict.fromkeys(owners)]
    numbers = {name: number for number, name in enumerate(names)}
    owner = np.array([numbers[name] for name in owners])
    comparisons = _Comparisons(vectors, owner, np.asarray(measures, bool))
    share = 1 - (1 - rate) ** (1 / len(names))  # accepted share above the threshold
    alike = []
    for find_wrong in (comparisons.misfiled, comparisons.same_people):
        cosine = comparisons.threshold(share, prior, wide=True)
        if cosine is not None:
            alike += find_wrong(1 - _APART * (1 - cosine))
    misfiled = [(names[owner[one]], pictures[one]) for _, one, _, is_picture in alike if is_picture]
    cosine = comparisons.threshold(share, prior)
    lines = [
        (f"{names[owner[one]]}/{pictures[one]}" if is_picture else names[one], names[other])
        for _, one, other, is_picture in sorted(alike, key=lambda pair: -pair[0])
    ]
    people = comparisons.measuring_people
    if cosine is None:
        return GalleryThreshold(rate, size=len(names), people=people, alike=lines[:_MOST_ALIKE])
    rates = comparisons.strangers(cosine), comparisons.found(cosine)
    alike = lines[:_MOST_ALIKE]
    return GalleryThreshold(rate, cosine, prior, len(names), people, *rates, alike, misfiled)


class _Comparisons:
    """A gallery's pictures, each with its nearest people.

    The arguments are `measure`'s, except that `owner` contains numbers, int [n].
    """

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
        """Compare the chosen pictures with each person's mean over used pictures."""
        used = np.flatnonzero(self._used)
        sums = np.zeros((self._people, self._vectors.shape[1]), np.float32)
        np.add.at(sums, self._owner[used], self._vectors[used])
        self._counts = np.bincount(self._owner[used], minlength=self._people)
        asked = self._vectors[self._asked]
        self._cosines, self._met = search(asked, unit_rows(sums), _NEAREST)
        self._whose = self._owner[self._asked]
        others = unit_rows(sums[self._whose] - asked)
        own = np.einsum("nd,nd->n", asked, others)
        # The cosine with the mean over the person's other pictures.
        self._own = np.where(self._counts[self._whose] > 1, own, -1.0)
        self._other = self._used[self._asked, np.newaxis] & (self._met != self._whose[:, np.newaxis])
        for one, other in self._same:
            for mine, theirs in ((one, other), (other, one)):
                self._other[self._whose == mine] &= self._met[self._whose == mine] != theirs

    def threshold(self, share: float, prior: float | None, wide: bool = False) -> float | None:
        """Estimate the cosine that a share of comparisons with strangers exceeds.

        Args:
            share: the share of comparisons, between 0 and 1.
            prior: the network's own threshold for two pictures, or None.
            wide: whether to fit a larger tail, while it may still contain outliers.

        Returns None if there are too few people and no prior.
        """
        cosines = self._cosines[self._other & self._measures[:, np.newaxis]]
        if prior is not None:  # convert from the prior's share to this gallery's share
            expected = math.log(max(1 - prior, _SMALLEST)) + math.log(share / _PRIOR_SHARE) / _PRIOR_EXPONENT
        if self.measuring_people < (LEAST_PEOPLE if prior is None else 2) or not len(cosines):
            return None if prior is None else max(-1.0, 1 - math.exp(expected))
        searches = int(np.count_nonzero(self._measures & self._used[self._asked]))
        count = max(len(cosines), searches * (self._people - 1))
        fitted = (4 if wide else 1) * max(_FITTED, 10 * share * count)
        fitted = int(min(fitted, max(1, count // 4), len(cosines) - 1)) or 1
        distances = np.sort(np.maximum(1 - cosines.astype(np.float64), _SMALLEST))
        edge = distances[min(fitted, len(distances) - 1)]
        # Count the independent comparisons. Ann's distance to Bob equals Bob's to Ann. All
        # a person's pictures have similar distances to other people.
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
        """Find the misfiled pictures, and exclude them from the measurement.

        A picture is misfiled if its cosine with another person exceeds `cosine` and the cosine with its own
        person. If more than half of a person's pictures are like the other person, or if a person would keep
        no picture, none of the person's pictures is misfiled.

        Returns for each picture: the cosine, the picture's number, the other person's number and True.
        """
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
        lost = np.bincount(self._owner[[picture for _, picture, *_ in found]], minlength=self._people)
        keeps_none = (lost == self._counts)[self._owner]
        found = [each for each in found if not keeps_none[each[1]]]
        self._used[[picture for _, picture, *_ in found]] = False
        self._compare()
        return found

    def same_people(self, cosine: float) -> list[tuple[float, int, int, bool]]:
        """Find pairs of people who look like one person, and exclude the comparisons between them.

        A pair looks like one person if a picture's cosine with the other person exceeds `cosine`.

        Returns for each pair: the cosine, both people's numbers and False. Returns an empty list if
        there are more pairs than people.
        """
        pairs: dict[tuple[int, int], float] = {}
        for (one, other), cosines in self._pairs(self._other & (self._cosines > cosine)).items():
            pair = min(one, other), max(one, other)
            pairs[pair] = max(pairs.get(pair, -1.0), *cosines)
        if len(pairs) > self._people:  # to this network nearly all people look alike
            return []
        self._same = {*pairs}
        self._compare()
        return [(similarity, other, one, False) for (one, other), similarity in pairs.items()]

    def _pairs(self, near: np.ndarray) -> dict[tuple[int, int], list[float]]:
        """Collect cosines by person and other person.

        Args:
            near: which comparisons to collect, bool, shaped like `_cosines`.
        """
        pairs: dict[tuple[int, int], list[float]] = {}
        for place, column in zip(*np.nonzero(near)):
            pair = int(self._whose[place]), int(self._met[place, column])
            pairs.setdefault(pair, []).append(float(self._cosines[place, column]))
        return pairs

    def _nearest_other(self) -> np.ndarray:
        """Return each chosen picture's highest cosine with another person, -1 if there is no other
        person."""
        return np.where(self._other, self._cosines, -1.0).max(axis=1)

    def strangers(self, cosine: float) -> float | None:
        """Return how many pictures, as a share, would be named if their own person were not in the gallery.

        Returns None if no picture can be compared.
        """
        asked = self._measures & self._used[self._asked] & self._other.any(axis=1)
        return float(np.mean(self._nearest_other()[asked] > cosine)) if asked.any() else None

    def found(self, cosine: float) -> float | None:
        """Return the share of each person's pictures that are found, averaged over people.

        A picture is found if its person's other pictures are nearest and above `cosine`. Returns None if
        nobody has two pictures.
        """
        asked = self._used[self._asked] & (self._counts[self._whose] > 1)
        if not asked.any():
            return None
        found = (self._own > cosine) & (self._own > self._nearest_other())
        of_person = np.bincount(self._whose[asked], minlength=self._people)
        hits = np.bincount(self._whose[asked], found[asked], minlength=self._people)
        return float(np.mean(hits[of_person > 0] / of_person[of_person > 0]))


def choose_evenly(people: np.ndarray, most: int) -> np.ndarray:
    """Choose pictures evenly: one per person, then a second one, and so on.

    Args:
        people: the person in each picture, names or numbers [N].
        most: maximum number of pictures.

    Returns the indices of the chosen pictures, int64 in increasing order.
    """
    numbers = np.unique(people, return_inverse=True)[1]
    order = np.argsort(numbers, kind="stable")
    counts = np.bincount(numbers)
    rank = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(order[np.argsort(rank, kind="stable")[:most]])
