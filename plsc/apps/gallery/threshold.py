"""Measure the threshold of a gallery's search: who is not in the gallery shall get no name.

A stranger gets a name where the cosine with the nearest person of the gallery is above the threshold. What is
measured are these largest cosines, of the gallery's own people, each without their own pictures. People that
the network was trained on do not count: they are unlike each other to it, and their threshold is too low.

The rates that matter (1 %) lie beyond what some ten people show, so the upper tail is fitted. A cosine ends
at 1, and near its end a tail is a power of the distance d = 1 - cosine (the Weibull case of extreme value
theory):

    P(distance < d) = share * (d / edge) ** exponent        for d < edge

with Hill's estimate of the exponent (Hill, "A simple general approach to inference about the tail of a
distribution", 1975). Twice as many searches are fitted as shall be beyond the threshold, at least twenty. Of
those beyond it only the number counts: where somebody has two names, the one comes nearer to the other than
any tail foresees.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

RATE = 0.01
"""The share of strangers' searches that gives a name, unless another one is asked for."""
MOST_PICTURES = 1000  # that are searched
LEAST_PEOPLE = 10
"""Whose searches are needed: of fewer people the tail says next to nothing."""
_LEAST_SEARCHES = 20  # that are fitted, where they are half of all at most
_TEST = 1000  # searches of a test
_NEAREST = 1e-6  # the smallest distance that is told from 0


@dataclass(frozen=True)
class Threshold:
    """The cosine above which the nearest person is accepted, and how it was found."""

    rate: float
    """The share of strangers' searches that gives a name."""
    cosine: float | None = None
    """None: not known, so nobody gets a name."""
    people: int = 0
    """Whose pictures were searched; 0: it is the network's own, for two pictures."""
    low: float = 0.0
    """95 % of tests with a thousand strangers find the rate between these."""
    high: float = 0.0
    nearest: tuple[str, str, float] | None = None
    """The two of these people who are most alike, and their cosine: one person under two names raises the
    threshold for all."""

    def describe(self) -> str:
        """Say in a line what it is."""
        fewer = f"{LEAST_PEOPLE} people whom it was not trained on measure the gallery's own"
        if self.cosine is None:
            return f"nobody gets a name, since the network has no threshold; {fewer}"
        if not self.people:
            return f"a name above {self.cosine:.2f}, the network's threshold for two pictures; {fewer}"
        one, other, most = self.nearest
        return (
            f"a name above {self.cosine:.2f}: {self.rate:.1%} of strangers get one ({self.low:.1%} to "
            f"{self.high:.1%}), measured on {self.people:,} people, the gallery's own; most alike are {one} "
            f"and {other} ({most:.2f}): one person?"
        )


def measure(store: Any, rate: float, networks_own: float | None) -> Threshold:
    """Find the cosine that a share `rate` of strangers' searches exceeds; `networks_own`: the network's, for
    where people are too few."""
    vectors, people = store.measuring()
    if len({*people}) < LEAST_PEOPLE:
        return Threshold(rate, networks_own)
    chosen = one_of_everybody_first(people, MOST_PICTURES)
    own = people[chosen]
    found = store.search(vectors[chosen], 2)
    nearest = [next(match for match in matches if match[0] != name) for matches, name in zip(found, own)]
    names, cosines = zip(*nearest)
    _, numbers = np.unique(np.concatenate([own, np.array(names, object)]).astype(str), return_inverse=True)
    whose, met = np.split(numbers, 2)
    # Without their own pictures people meet one person fewer than a stranger does.
    size = len(store)
    fewer = 1 - (1 - rate) ** ((size - 1) / size)
    tail = fit_tail(np.array(cosines), whose, met, fewer)
    cosine = float(np.clip(tail.threshold(fewer), -1, 1))
    most, one, other = max(zip(cosines, own, names))
    low, high = tail.interval(cosine)
    return Threshold(rate, cosine, len(np.unique(whose)), low, high, (one, other, float(most)))


class Tail(NamedTuple):
    """The upper tail of the largest cosines of strangers."""

    edge: float
    """The distance 1 - cosine below which the tail is fitted."""
    share: float
    """Of the searches that lie below the edge."""
    exponent: float
    people: float
    """Whose searches show the exponent, as many as are independent; see `fit_tail`."""

    def threshold(self, fpir: float) -> float:
        """Compute the cosine that a stranger's search exceeds with the probability `fpir`.

        The exponent is uncertain: the mean of the probability over what it may be (a gamma distribution
        around Hill's estimate) is `fpir`. So fewer people give a higher threshold.
        """
        if fpir >= self.share:
            return 1 - self.edge
        steps = self.people * ((self.share / fpir) ** (1 / self.people) - 1) / self.exponent
        return 1 - self.edge * math.exp(-steps)

    def interval(self, threshold: float) -> tuple[float, float]:
        """Compute between which shares 95 % of tests with a thousand strangers find those above a threshold,
        in steps of 0.1 %.

        Normal in the logarithm: share and exponent both come from the searches below the edge, and a test
        counts few of them.
        """
        steps = max(0.0, self.exponent * math.log(self.edge / max(1 - threshold, _NEAREST)))
        rate = max(self.share * math.exp(-steps), _NEAREST)
        spread = 1.96 * math.sqrt((1 + steps**2) / self.people + 1 / (_TEST * rate))
        low, high = rate * math.exp(-spread), min(1.0, rate * math.exp(spread))
        return math.floor(1000 * low) / 1000, math.ceil(1000 * high) / 1000


def fit_tail(cosines: np.ndarray, people: np.ndarray, met: np.ndarray, fpir: float) -> Tail:
    """Fit the upper tail of strangers' searches, of LEAST_PEOPLE people or more.

    cosines: float64 [n], with the nearest other person. people: int64 [n], whose search it was. met: int64
    [n], whom each came nearest to: Ann is as near to Bob as Bob to Ann, so the two are one observation. fpir:
    the rate that is asked for; the tail begins there at the latest.
    """
    order = np.argsort(-cosines, kind="stable")
    distances = np.maximum(1 - cosines[order], _NEAREST)
    count = len(distances)
    beyond = round(fpir * count)
    fitted = min(max(_LEAST_SEARCHES, 2 * beyond), count // 2)
    beyond = min(beyond, fitted // 2)
    edge = float(distances[fitted])
    nearest = order[:fitted]
    pairs = np.sort(np.stack([people[nearest], met[nearest]], axis=1))
    effective = min(_effective(people[nearest]), _effective(pairs))
    logarithms = np.log(edge / distances[:fitted])
    logarithms[:beyond] = logarithms[beyond]  # a censored sample
    # All at the edge: equal pictures. Any exponent would do; this one keeps the threshold finite.
    exponent = (1 - beyond / fitted) / max(float(logarithms.mean()), _NEAREST)
    return Tail(edge, fitted / count, exponent, effective * (1 - beyond / fitted))


def _effective(groups: np.ndarray) -> float:
    """Count groups [n, ...], those with more rows than others as fewer (Kish's effective number)."""
    of = np.unique(groups, axis=0, return_counts=True)[1]
    return float(of.sum() ** 2 / (of**2).sum())


def one_of_everybody_first(people: np.ndarray, most: int) -> np.ndarray:
    """Choose at most `most` pictures: one of everybody, then a second one, and so on.

    people: [N], whom each picture shows, text or numbers. Returns indices of pictures, int64, increasing.
    """
    numbers = np.unique(people, return_inverse=True)[1]
    order = np.argsort(numbers, kind="stable")
    counts = np.bincount(numbers)
    rank = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(order[np.argsort(rank, kind="stable")[:most]])
