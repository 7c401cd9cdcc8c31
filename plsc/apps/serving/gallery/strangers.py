"""Measure the threshold of a gallery's search: who is not in the gallery shall get no name.

Two kinds of pictures are searched, of people whom the network was not trained on: those of the gallery's people, without themselves, and
those of others (held out from the run's training, or a user's strangers). People that a network was trained on are unlike each other to
it, so their threshold would be too low. The kind with more people in its tail counts, unless the other one contradicts it, where a
stranger would get a name more often than asked: others may be photographed in another way than the gallery's people, and of these the
network may have seen some under another name.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from plsc.apps.serving.gallery.files import Measured, Pictures
from plsc.apps.serving.gallery.rows import Rows
from plsc.evaluation.search import search
from plsc.evaluation.strangers import Tail, fit_tail
from plsc.utils.text import last_part

FPIR = 0.01
"""The share of strangers' searches that gives a name, unless another one is asked for."""
MOST_PICTURES = 1000
"""That are kept of each kind."""
GALLERY = "the gallery's own people, each without their own pictures"
HELD_OUT = "people held out from training"
STRANGERS = "strangers"
_THE_SAME = 0.9999  # two embeddings with a higher cosine are of the same picture


def held_out(embedder: Any, names: Collection[str], enrolled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Embed the held-out people of the embedder's run, without those who are in the gallery: [Q, D], and who they are int64 [Q].

    names: of the gallery's people. enrolled: float32 [N, D], their pictures; whoever has the same picture is in the gallery, too.
    """
    embeddings, whose = embedder.held_out(MOST_PICTURES)
    known = {last_part(name) for name in names}
    inside = np.array([last_part(name) in known for name in whose], bool)
    if len(enrolled) and len(embeddings):
        inside |= search(embeddings, enrolled, 1)[0][:, 0] > _THE_SAME
    people = np.unique(np.asarray(whose, str), return_inverse=True)[1].astype(np.int64)
    kept = ~np.isin(people, people[inside])
    return embeddings[kept], people[kept]


def with_pictures(pictures: Pictures, person: int, embeddings: np.ndarray, trained: bool) -> Pictures:
    """Add pictures of the gallery's person with this number. Whoever has the same picture is no other person any more.

    embeddings: float32 [n, D]. trained: whether the network was trained on the person, whose pictures are not kept then.
    """
    own, own_people, others, other_people = pictures
    if len(others):
        same = (others @ embeddings.T).max(1) > _THE_SAME
        kept = ~np.isin(other_people, other_people[same])
        others, other_people = others[kept], other_people[kept]
    if not trained:
        added = embeddings[: max(0, MOST_PICTURES - len(own))]
        own = np.concatenate([own, added])
        own_people = np.concatenate([own_people, np.full(len(added), person)])
    return Pictures(own, own_people, others, other_people)


def without(pictures: Pictures, person: int) -> Pictures:
    """Remove the pictures of the gallery's person with this number."""
    kept = pictures.own_people != person
    return pictures._replace(own=pictures.own[kept], own_people=pictures.own_people[kept])


class _Evidence(NamedTuple):
    """What the searches of one kind of pictures say."""

    by: str
    people: np.ndarray
    fpir: float
    tail: Tail


def measure(
    rows: Rows, pictures: Pictures, size: int, others: str, fpir: float
) -> tuple[float, Measured] | None:
    """Measure the threshold of a gallery that gives a share `fpir` of strangers' searches a name; None: people are too few.

    rows: what is searched. size: the people in it. others: whose pictures `pictures.others` are; a user's strangers count alone.
    """
    kinds = []
    if len(pictures.others) and size:
        nobody = np.full(len(pictures.others), -1)
        kinds.append((others, _nearest(rows, pictures.others, nobody), pictures.other_people, fpir))
    if others != STRANGERS and size > 1:
        cosines = _nearest(rows, pictures.own, pictures.own_people)
        # Without their own pictures people meet one person fewer than a stranger does.
        kinds.append((GALLERY, cosines, pictures.own_people, 1 - (1 - fpir) ** ((size - 1) / size)))
    found = [
        _Evidence(by, people, rate, tail)
        for by, cosines, people, rate in kinds
        if (tail := fit_tail(cosines, people, rate))
    ]
    if not found:
        return None
    best, *rest = sorted(found, key=lambda evidence: -evidence.tail.people)
    for other in rest:
        if other.tail.interval(best.tail.threshold(best.fpir))[0] > fpir:
            best = other
    threshold = float(np.clip(best.tail.threshold(best.fpir), -1, 1))
    low, high = best.tail.interval(threshold)
    facts = {"pictures": len(best.people), "people": len(np.unique(best.people)), "size": size}
    return threshold, Measured(fpir=fpir, low=low, high=high, by=best.by, **facts)


def _nearest(rows: Rows, embeddings: np.ndarray, themselves: np.ndarray) -> np.ndarray:
    """Return the cosine of each picture with the nearest person that is not its own: float64 [n]."""
    found = rows.nearest(embeddings, 2)
    return np.array(
        [
            max((cosine for person, cosine in nearest.items() if person != own), default=-1.0)
            for nearest, own in zip(found, themselves.tolist())
        ]
    )
