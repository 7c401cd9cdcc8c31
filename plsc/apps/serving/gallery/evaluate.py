"""Measure a gallery on pictures of the people in it and of strangers, as it is used: at its threshold, at its
size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plsc.apps.serving.gallery.gallery import Gallery
from plsc.apps.serving.gallery.names import composed
from plsc.errors import UserError, shown
from plsc.evaluation.identification import FPIRS, threshold_at_fpir
from plsc.evaluation.intervals import IN_BRACKETS, bootstrap_groups, wilson, with_interval
from plsc.utils.text import counted, table


@dataclass(frozen=True)
class Evaluation:
    """How the pictures did. Of each picture the nearest person counts.

    people: in the gallery. threshold: the gallery's; None: it has none. right: bool [known], whether the
    nearest person is
    the right one. known: float64 [known] and strangers: float64 [strangers], descending: the cosine with that
    person. known_people,
    strange_people: int64, whom each of these pictures shows.
    """

    people: int
    threshold: float | None
    right: np.ndarray
    known: np.ndarray
    strangers: np.ndarray
    known_people: np.ndarray
    strange_people: np.ndarray

    def accepted(self, threshold: float) -> float | None:
        """Compute the share of the known that is accepted as the right person; None without any."""
        return float(np.mean(self.right & (self.known > threshold))) if len(self.known) else None

    def rejected(self, threshold: float) -> float | None:
        """Compute the share of the strangers that is rejected; None without any."""
        return float(np.mean(self.strangers <= threshold)) if len(self.strangers) else None

    def numbers(self) -> dict[str, Any]:
        """Return all numbers, for programs. Rates are fractions; null where there are no pictures for one."""
        points = {"stored": self.threshold}
        points.update({f"fpir={fpir:g}": threshold_at_fpir(self.strangers, fpir) for fpir in FPIRS})
        return {
            "people": self.people,
            "known": len(self.known),
            "strangers": len(self.strangers),
            "rank1": float(np.mean(self.right)) if len(self.right) else None,
            "thresholds": {
                name: {
                    "cosine": at,
                    "known_accepted": self.accepted(at),
                    "strangers_rejected": self.rejected(at),
                }
                for name, at in points.items()
                if at is not None
            },
        }

    def table(self) -> str:
        """Return the numbers as text for people."""
        numbers = self.numbers()
        rank1 = _with_interval(self.right, self.known_people)
        people, known = counted(self.people, "person", "people"), counted(len(self.known), "picture")
        head = [
            f"{people} in the gallery; {known} of them, {len(self.strangers):,} of strangers",
            f"rank-1: {rank1}; {IN_BRACKETS} 95 % confidence interval (bootstrap over people)",
        ]
        rows = [
            [
                "the gallery's" if name == "stored" else f"at FPIR {name.removeprefix('fpir=')}",
                f"{each['cosine']:.4f}",
                _with_interval(self.right & (self.known > each["cosine"]), self.known_people),
                _with_interval(self.strangers <= each["cosine"], self.strange_people),
            ]
            for name, each in numbers["thresholds"].items()
        ]
        if not len(self.strangers):
            head.append(
                "whether strangers are rejected is not known: put pictures of people who are not in the gallery beside "
                "these, a folder for each"
            )
        return "\n".join(
            [*head, "", table(rows, ["threshold", "cosine", "accepted and right", "strangers rejected"])]
        )


def _with_interval(hits: np.ndarray, people: np.ndarray) -> str:
    """Format the share of hits, bool [n], among pictures of people int64 [n]: those of a person are alike, so
    people are the sample.

    Where all draws agree it is Wilson's interval of as many trials as there are people.
    """
    if not len(hits):
        return "-"
    share = float(np.mean(hits))
    low, high = bootstrap_groups(hits[:, np.newaxis].astype(np.float64), people)[:, 0]
    return with_interval(share, (low, high) if low < high else wilson(share, len(np.unique(people))))


def evaluate(gallery: Gallery, embeddings: np.ndarray, names: Sequence[str]) -> Evaluation:
    """Search pictures of people, known and strangers.

    embeddings: float32 [n, D]; names: of the person of each. UserError for an empty gallery.
    """
    names = [*map(composed, names)]
    known = set(gallery.names())
    if not known:
        raise UserError(f"{shown(gallery.path)}: has no people; add some first")
    nearest = [matches[0] for matches in gallery.search(embeddings, top=1, threshold=-1.0)]
    cosine = np.array([match.similarity for match in nearest])
    right = np.array([match.name == name for match, name in zip(nearest, names)], bool)
    mated = np.array([name in known for name in names], bool)
    people = np.unique(names, return_inverse=True)[1]
    descending = np.flatnonzero(~mated)[np.argsort(-cosine[~mated], kind="stable")]
    return Evaluation(
        len(known),
        gallery.threshold,
        right[mated],
        cosine[mated],
        cosine[descending],
        people[mated],
        people[descending],
    )
