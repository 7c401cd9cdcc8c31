"""Measure the threshold of a gallery's search: who is not in the gallery shall get no name.

The pictures of the gallery's people are searched, each without the person's own. People that the network was
trained on do not count: they are unlike each other to it, so their threshold would be too low.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from plsc.apps.gallery.strangers import LEAST_PEOPLE, fit_tail, one_of_everybody_first

RATE = 0.01
"""The share of strangers' searches that gives a name, unless another one is asked for."""
MOST_PICTURES = 1000  # that are searched


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

    def describe(self) -> str:
        """Say in a line what it is."""
        fewer = f"{LEAST_PEOPLE} people whom it was not trained on measure the gallery's own"
        if self.cosine is None:
            return f"nobody gets a name, since the network has no threshold; {fewer}"
        if not self.people:
            return f"a name above {self.cosine:.2f}, the network's threshold for two pictures; {fewer}"
        return (
            f"a name above {self.cosine:.2f}: {self.rate:.1%} of strangers get one ({self.low:.1%} to "
            f"{self.high:.1%}), measured on {self.people:,} people, the gallery's own"
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
    return Threshold(rate, cosine, len(np.unique(whose)), *tail.interval(cosine))
