"""Hold the rows of a gallery, and find the people that are most similar to a query, exactly.

The rows of an index's file stay there; those added since are in an array that grows. The first search makes
codes of them, see plsc.apps.serving.gallery.search. A row that is removed belongs to nobody from then on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from plsc.apps.serving.gallery import search
from plsc.checkpoint.tensorfile import FileRows

_NOBODY = -1


class Rows:
    """The rows of a gallery.

    Args:
        embeddings: float32 [N, D] of length 1. owners: int64 [N], which are changed.
    """

    def __init__(self, embeddings: np.ndarray | FileRows, owners: np.ndarray):
        empty = np.empty((0, embeddings.shape[1]), np.float32), np.empty(0, np.int64)
        self.parts = [_Part(embeddings, owners), _Part(*empty)]

    def __len__(self) -> int:
        return sum(part.count - part.removed for part in self.parts)

    def of(self, owner: int) -> np.ndarray:
        """Return a copy of a person's embeddings [n, D]."""
        return np.concatenate([part.embeddings[part.find(owner)] for part in self.parts])

    def all(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all embeddings [n, D], and their owners int64 [n]."""
        kept = [part.kept() for part in self.parts if part.count or part is self.parts[0]]
        return kept[0] if len(kept) == 1 else tuple(map(np.concatenate, zip(*kept)))

    def add(self, owner: int, embeddings: np.ndarray) -> None:
        """Add rows of a person."""
        self.parts[1].append(embeddings, np.full(len(embeddings), owner))

    def remove(self, owners: Sequence[int]) -> int:
        """Remove all rows of people; return how many of them had some."""
        return len(set().union(*(part.remove(owners) for part in self.parts)))

    def nearest(self, queries: np.ndarray, people: int) -> list[dict[int, float]]:
        """Find for each query the most similar people: person -> similarity of the nearest row, best first.

        queries: float32 [Q, D] of length 1. Exact: the similarities are float64, and of equal ones the person
        with the lower number comes first.
        """
        parts = [search.Part(part.index, part.rows, part.owners[: part.count]) for part in self.parts]
        return search.nearest(parts, queries, people)


class _Part:
    """Rows that lie one after the other: the first `count` of the arrays, `removed` of them nobody's."""

    def __init__(self, embeddings: np.ndarray | FileRows, owners: np.ndarray):
        self.embeddings = embeddings
        self.owners = owners
        self.count = len(owners)
        self.removed = 0
        self.index = search.new_index(embeddings.shape[1])

    @property
    def rows(self) -> np.ndarray | FileRows:
        return self.embeddings if self.count == len(self.embeddings) else self.embeddings[: self.count]

    def find(self, owner: int) -> np.ndarray:
        return np.flatnonzero(self.owners[: self.count] == owner)

    def kept(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows that are somebody's, and whose."""
        owners = self.owners[: self.count]
        if not self.removed:
            return self.embeddings[: self.count], owners
        return self.rows[owners != _NOBODY], owners[owners != _NOBODY]

    def append(self, embeddings: np.ndarray, owners: np.ndarray) -> None:
        if self.count + len(embeddings) > len(self.owners):
            self._grow(len(embeddings))
        rows = slice(self.count, self.count + len(embeddings))
        self.embeddings[rows], self.owners[rows] = embeddings, owners
        self.count = rows.stop

    def _grow(self, more: int) -> None:
        """Make room for `more` rows, and as many again, and leave out the removed ones."""
        rows, owners = self.kept()
        if self.removed:
            self.index = search.new_index(rows.shape[1])
        room = max(len(rows), more, 64) + more
        self.embeddings = np.concatenate([rows, np.zeros((room, rows.shape[1]), np.float32)])
        self.owners = np.concatenate([owners, np.zeros(room, np.int64)])
        self.count, self.removed = len(rows), 0

    def remove(self, owners: Sequence[int]) -> set[int]:
        """Remove the rows of people; return of whom there were some."""
        at = np.flatnonzero(np.isin(self.owners[: self.count], owners))
        found = set(self.owners[at].tolist())
        self.owners[at] = _NOBODY
        self.removed += len(at)
        if isinstance(self.embeddings, np.ndarray):
            self.embeddings[at] = 0
        return found
