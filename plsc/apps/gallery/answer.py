"""Define the answers of a gallery: whom a picture shows, and whether two pictures show one person."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Match(NamedTuple):
    """A person of the gallery who was compared with a face."""

    name: str
    similarity: float
    """Cosine with the mean of the person's pictures, -1 to 1."""


@dataclass(frozen=True)
class Face:
    """A face of a picture, and whom it shows."""

    name: str | None
    """The nearest person, if the similarity is above the threshold; None: nobody."""
    matches: list[Match]
    """The nearest people, best first; empty if the gallery is empty or there is no face."""
    reason: str
    """Why nobody is named, in one line; empty if somebody is."""
    threshold: float | None = None
    """The similarity above which the nearest person is named; None: not known."""
    box: tuple[int, int, int, int] | None = None
    """Left, top, width and height in pixels of the picture; None: the whole picture was embedded."""

    def __str__(self) -> str:
        if self.name is None:
            return f"nobody ({self.reason})"
        return f"{self.name} ({self.matches[0].similarity:.2f}; a name needs {self.threshold:.2f})"


@dataclass(frozen=True)
class Answer(Face):
    """Whom a picture shows. Name, matches and reason are those of its largest face."""

    faces: list[Face] = field(default_factory=list)
    """The faces that were found, the largest first; empty if the network looks for none."""


@dataclass(frozen=True)
class Verification:
    """Whether two pictures show one person."""

    same: bool
    """Whether the similarity is above the threshold."""
    similarity: float
    """Cosine of the two embeddings, -1 to 1."""
    threshold: float
    """The network's, for two pictures."""

    def __str__(self) -> str:
        what = "one person" if self.same else "two people"
        return f"{what} ({self.similarity:.2f}; one person needs {self.threshold:.2f})"
