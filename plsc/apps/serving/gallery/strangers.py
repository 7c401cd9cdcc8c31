"""Measure the threshold of a gallery's search: who is not in the gallery shall get no name.

Two kinds of pictures are searched, of people whom the network was not trained on: those of the gallery's
people, without themselves, and those of others (held out from the run's training, or a user's strangers).
People that a network was trained on are unlike each other to it, so their threshold would be too low. The
kind with more people in its tail counts, unless the other one contradicts it, where a stranger would get a
name more often than asked: others may be photographed in another way than the gallery's people, and of these
the network may have seen some under another name.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from plsc.apps.serving.gallery.facts import Facts, Measured
from plsc.apps.serving.gallery.index import Index
from plsc.evaluation.search import search
from plsc.evaluation.strangers import Tail, fit_tail, one_of_everybody_first
from plsc.utils.text import last_part

FPIR = 0.01
"""The share of strangers' searches that gives a name, unless another one is asked for."""
MOST_PICTURES = 1000
"""That are kept of each kind."""
GALLERY = "the gallery's own people, each without their own pictures"
HELD_OUT = "people held out from training"
STRANGERS = "strangers"
_THE_SAME = 0.9999  # two embeddings with a higher cosine are of the same picture


class Strangers(NamedTuple):
    """Pictures of people who are not in the gallery, and whom the network was not trained on."""

    vectors: np.ndarray
    """float32 [Q, D] of length 1."""
    people: np.ndarray
    """int64 [Q]: numbers of their own."""


def held_out(embedder: Any, names: Collection[str], enrolled: np.ndarray) -> Strangers:
    """Embed the held-out people of the embedder's run, without those who are in the gallery.

    names: of the gallery's people. enrolled: float32 [N, D], their pictures; whoever has the same picture is
    in the gallery, too.
    """
    embeddings, whose = embedder.held_out(MOST_PICTURES)
    known = {last_part(name) for name in names}
    inside = np.array([last_part(name) in known for name in whose], bool)
    if len(enrolled) and len(embeddings):
        inside |= search(embeddings, enrolled, 1)[0][:, 0] > _THE_SAME
    people = np.unique(np.asarray(whose, str), return_inverse=True)[1].astype(np.int64)
    kept = ~np.isin(people, people[inside])
    return Strangers(embeddings[kept], people[kept])


def without_the_same(strangers: Strangers, embeddings: np.ndarray) -> Strangers:
    """Leave out strangers of whom one of these pictures is: they are in the gallery now. embeddings: float32
    [n, D]."""
    vectors, people = strangers
    if not len(vectors):
        return strangers
    same = (vectors @ embeddings.T).max(1) > _THE_SAME
    kept = ~np.isin(people, people[same])
    return Strangers(vectors[kept], people[kept])


class _Evidence(NamedTuple):
    """What the searches of one kind of pictures say."""

    by: str
    people: np.ndarray
    fpir: float
    tail: Tail


def measured(store: Any, index: Index, facts: Facts, fpir: float) -> Facts:
    """Return the facts with a threshold that gives a share `fpir` of strangers' searches a name; None where
    people are too few.

    A user's strangers count alone.
    """
    strangers = Strangers(*store.strangers())
    pictures, people = store.pictures(measuring=True)
    chosen = one_of_everybody_first(people, MOST_PICTURES)
    own, own_people = store.vectors(pictures[chosen]), people[chosen]
    size = index.people
    kinds = []
    if len(strangers.people) and size:
        nobody = np.full(len(strangers.people), -1)
        cosines, _ = _nearest(index, strangers.vectors, nobody)
        kinds.append((facts.others, cosines, strangers.people, None, fpir))
    if facts.others != STRANGERS and size > 1 and len(own):
        cosines, met = _nearest(index, own, own_people)
        # Without their own pictures people meet one person fewer than a stranger does.
        kinds.append((GALLERY, cosines, own_people, met, 1 - (1 - fpir) ** ((size - 1) / size)))
    found = [
        _Evidence(by, people, rate, tail)
        for by, cosines, people, met, rate in kinds
        if (tail := fit_tail(cosines, people, rate, met))
    ]
    if not found:
        return facts.model_copy(update={"threshold": None, "measured": None})
    best, *rest = sorted(found, key=lambda evidence: -evidence.tail.people)
    for other in rest:
        if other.tail.interval(best.tail.threshold(best.fpir))[0] > fpir:
            best = other
    threshold = float(np.clip(best.tail.threshold(best.fpir), -1, 1))
    low, high = best.tail.interval(threshold)
    counts = {"pictures": len(best.people), "people": len(np.unique(best.people)), "size": size}
    how = Measured(fpir=fpir, low=low, high=high, by=best.by, **counts)
    return facts.model_copy(update={"threshold": threshold, "measured": how})


def _nearest(index: Index, embeddings: np.ndarray, themselves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the cosine of each picture with the nearest person that is not its own, float64 [n], and who
    that is, int64 [n]."""
    found = index.nearest(embeddings, 2)
    others = [
        next(((cosine, person) for person, cosine in nearest.items() if person != own), (-1.0, -1))
        for nearest, own in zip(found, themselves.tolist())
    ]
    cosines, people = zip(*others)
    return np.array(cosines), np.array(people, np.int64)
