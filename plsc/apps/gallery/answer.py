"""Define a gallery's answers: who is in a picture, and whether two pictures show the same person."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Match(NamedTuple):
    """A person in the gallery, with the similarity to a face."""

    name: str
    similarity: float
    """Cosine between the face's embedding and the mean of the person's embeddings, -1 to 1."""


@dataclass(frozen=True)
class Face:
    """A face in a picture, and the person it shows."""

    name: str | None
    """The nearest person if the similarity is above the threshold, else None."""
    matches: list[Match]
    """The nearest people, best first. Empty if the gallery is empty or no face was found."""
    reason: str
    """Why `name` is None, in one line. Empty if `name` is set."""
    threshold: float | None = None
    """The similarity above which the nearest person is named. None if it is unknown."""
    box: tuple[int, int, int, int] | None = None
    """Left, top, width and height in the picture's pixels. None if the whole picture was embedded."""

    def __str__(self) -> str:
        if self.name is None:
            return f"nobody ({self.reason})"
        return f"{self.name} (similarity {self.matches[0].similarity:.2f}, threshold {self.threshold:.2f})"


@dataclass(frozen=True)
class Answer(Face):
    """The answer for a picture. All fields except `faces` describe its largest face."""

    faces: list[Face] = field(default_factory=list)
    """The faces that were found, largest first. Empty if the network embeds whole pictures."""


@dataclass(frozen=True)
class Verification:
    """The answer to whether two pictures show the same person."""

    same: bool
    """Whether the similarity is above the threshold."""
    similarity: float
    """The two embeddings' cosine, -1 to 1."""
    threshold: float
    """The network's threshold for two pictures."""

    def __str__(self) -> str:
        what = "one person" if self.same else "two people"
        return f"{what} (similarity {self.similarity:.2f}, threshold {self.threshold:.2f})"
