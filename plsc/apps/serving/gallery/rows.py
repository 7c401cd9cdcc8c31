"""Hold the rows of a gallery, and find the people that are most similar to a query, exactly.

The rows of an index's file are mapped into memory, those added since are in an array that grows; the first search makes codes of
them, see plsc.apps.serving.gallery.search. A row that is removed is overwritten by the last one, in the private pages of the mapping.
"""

from __future__ import annotations

import numpy as np

from plsc.apps.serving.gallery import search


class Rows:
    """The rows of a gallery.

    Args:
        embeddings: float32 [N, D] of length 1; owners: int64 [N].
    """

    def __init__(self, embeddings: np.ndarray, owners: np.ndarray):
        empty = np.empty((0, embeddings.shape[1]), np.float32), np.empty(0, np.int64)
        self.parts = [_Part(embeddings, owners), _Part(*empty)]

    def __len__(self) -> int:
        return sum(part.count for part in self.parts)

    def of(self, owner: int) -> np.ndarray:
        """Return a copy of a person's embeddings [n, D]."""
        return np.concatenate([part.embeddings[part.find(owner)] for part in self.parts])

    def add(self, owner: int, embeddings: np.ndarray) -> None:
        """Add rows of a person."""
        self.parts[1].append(embeddings, np.full(len(embeddings), owner))

    def remove(self, owner: int) -> None:
        """Remove all rows of a person."""
        for part in self.parts:
            part.remove(part.find(owner))

    def nearest(self, queries: np.ndarray, people: int) -> list[dict[int, float]]:
        """Find for each query the most similar people: person -> similarity of the nearest row, best first.

        queries: float32 [Q, D] of length 1. Exact: the similarities are float64, and of equal ones the person with the lower number
        comes first.
        """
        parts = [
            search.Part(part.index, part.embeddings[: part.count], part.owners[: part.count])
            for part in self.parts
        ]
        return search.nearest(parts, queries, people)


class _Part:
    """Rows that lie one after the other: the first `count` of the arrays."""

    def __init__(self, embeddings: np.ndarray, owners: np.ndarray):
        self.embeddings = embeddings
        self.owners = owners
        self.count = len(owners)
        self.index = search.new_index(embeddings.shape[1])

    def find(self, owner: int) -> np.ndarray:
        return np.flatnonzero(self.owners[: self.count] == owner)

    def append(self, embeddings: np.ndarray, owners: np.ndarray) -> None:
        stop = self.count + len(embeddings)
        if stop > len(self.owners):
            more = max(2 * len(self.owners), stop, 64) - self.count
            self.embeddings = _grown(self.embeddings[: self.count], more)
            self.owners = _grown(self.owners[: self.count], more)
        rows = slice(self.count, stop)
        self.embeddings[rows], self.owners[rows] = embeddings, owners
        self.count = stop

    def remove(self, at: np.ndarray) -> None:
        if self.index.count:  # else it has taken in nothing yet
            self.index.extend(self.embeddings[: self.count])
        for row in at[::-1].tolist():  # from the end, so that the last row is never one to remove
            self.count -= 1
            for array in (self.embeddings, self.owners):
                array[row] = array[self.count]
            if self.index.count:
                self.index.remove(row)


def _grown(array: np.ndarray, more: int) -> np.ndarray:
    return np.concatenate([array, np.zeros((more, *array.shape[1:]), array.dtype)])
