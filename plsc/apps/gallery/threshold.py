"""Measure the threshold of a gallery's search: who is not in the gallery shall get no name.

Two kinds of pictures are searched, of people whom the network was not trained on: those of the gallery's
people, without themselves, and those of people held out from the training of a run. (People that a network
was trained on are unlike each other to it, so their threshold would be too low.) The kind with more people in
its tail counts, unless the other one contradicts it, where a stranger would get a name more often than asked:
they may be photographed in another way, or the network may have seen some under another name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from plsc.apps.gallery.strangers import LEAST_PEOPLE, Tail, fit_tail, one_of_everybody_first
from plsc.utils.text import counted, last_part

RATE = 0.01
"""The share of strangers' searches that gives a name, unless another one is asked for."""
MOST_PICTURES = 1000
"""That are searched of each kind."""
_THE_SAME = 0.9999  # two embeddings with a higher cosine are of the same picture


@dataclass(frozen=True)
class Threshold:
    """The cosine above which the nearest person is accepted, and how it was found."""

    rate: float
    """The share of strangers' searches that gives a name."""
    cosine: float | None = None
    """None: not known, so nobody gets a name."""
    by: str = ""
    """Whose pictures were searched; "": it is the network's own, for two pictures."""
    people: int = 0
    low: float = 0.0
    """95 % of tests with a thousand strangers find the rate between these."""
    high: float = 0.0

    def describe(self) -> str:
        """Say in a line what it is."""
        fewer = f"a gallery of {LEAST_PEOPLE} people measures its own"
        if self.cosine is None:
            return f"nobody gets a name, since the network has no threshold; {fewer}"
        if not self.by:
            return (
                f"a name above {self.cosine:.2f}, which is the network's threshold for two pictures; {fewer}"
            )
        return (
            f"a name above {self.cosine:.2f}: {self.rate:.1%} of strangers get one ({self.low:.1%} to "
            f"{self.high:.1%}), measured on {counted(self.people, 'person', 'people')}, {self.by}"
        )


class _Evidence(NamedTuple):
    """What the searches of one kind of pictures say."""

    by: str
    people: int
    rate: float
    tail: Tail


def measure(store: Any, rate: float, networks_own: float | None) -> Threshold:
    """Find the cosine that a share `rate` of strangers' searches exceeds; `networks_own`: the network's, for
    where people are too few."""
    found = [evidence for evidence in (_own_people(store, rate), _held_out(store, rate)) if evidence]
    if not found:
        return Threshold(rate, networks_own)
    best, *rest = sorted(found, key=lambda evidence: -evidence.tail.people)
    for other in rest:
        if other.tail.interval(best.tail.threshold(best.rate))[0] > rate:
            best = other
    cosine = float(np.clip(best.tail.threshold(best.rate), -1, 1))
    return Threshold(rate, cosine, best.by, best.people, *best.tail.interval(cosine))


def _own_people(store: Any, rate: float) -> _Evidence | None:
    """Search the gallery's own people, each without their own pictures."""
    vectors, people = store.measuring()
    if len({*people}) < LEAST_PEOPLE:
        return None
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
    tail = fit_tail(np.array(cosines), whose, fewer, met)
    by = "the gallery's own, each without their own pictures"
    return None if tail is None else _Evidence(by, len(np.unique(whose)), fewer, tail)


def _held_out(store: Any, rate: float) -> _Evidence | None:
    """Search people held out from training, without those who are in the gallery, by name or by picture."""
    vectors, people = store.strangers()
    if not len(people):
        return None
    known = {last_part(name) for name in store.names()}
    cosines = np.array([matches[0][1] for matches in store.search(vectors, 1)])
    inside = np.array([last_part(name) in known for name in people]) | (cosines > _THE_SAME)
    kept = ~np.isin(people.astype(str), people[inside].astype(str))
    whose = np.unique(people[kept].astype(str), return_inverse=True)[1]
    tail = fit_tail(cosines[kept], whose, rate)
    return None if tail is None else _Evidence("held out from training", len(np.unique(whose)), rate, tail)
