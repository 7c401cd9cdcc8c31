"""Hold the rows of a gallery, and find the people that are most similar to a query, exactly.

The rows of the gallery's file are mapped into memory, those added since are in an array that grows. There is no other
copy. A row that is removed is overwritten by the last one, in the private pages of the mapping.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from plsc.distributed import environment
from plsc.evaluation.search import search

# Rows and queries from which on faiss is used if it is installed; with fewer queries NumPy's products are faster.
FAISS_ROWS = 100_000
FAISS_QUERIES = 512
_CANDIDATES = 2**22  # at once, of all queries
_MORE = 8  # candidates more than needed, since products of other blocks differ in the last digit


class Rows:
    """The rows of a gallery.

    Args:
        embeddings: float32 [N, D] of length 1; owners: int64 [N]; lengths: float32 [N], see files.Content.
    """

    def __init__(self, embeddings: np.ndarray, owners: np.ndarray, lengths: np.ndarray):
        width = embeddings.shape[1]
        empty = np.empty((0, width), np.float32), np.empty(0, np.int64), np.empty(0, np.float32)
        self.parts = [_Part(embeddings, owners, lengths), _Part(*empty)]
        self._counts = np.bincount(owners, minlength=1)  # rows of each person

    def __len__(self) -> int:
        return sum(part.count for part in self.parts)

    def of(self, owner: int) -> tuple[np.ndarray, np.ndarray]:
        """Return copies of a person's embeddings [n, D] and lengths [n]."""
        places = [(part, part.find(owner)) for part in self.parts]
        return (
            np.concatenate([part.embeddings[at] for part, at in places]),
            np.concatenate([part.lengths[at] for part, at in places]),
        )

    def add(self, owner: int, embeddings: np.ndarray, lengths: np.ndarray) -> None:
        """Add rows of a person."""
        self.parts[1].append(embeddings, np.full(len(embeddings), owner), lengths)
        if owner >= len(self._counts):
            self._counts = _grown(self._counts, max(len(self._counts), owner))
        self._counts[owner] += len(embeddings)

    def remove(self, owner: int) -> None:
        """Remove all rows of a person."""
        self._counts[owner] = 0
        for part in self.parts:
            part.remove(part.find(owner))

    def nearest(self, queries: np.ndarray, people: int) -> list[dict[int, float]]:
        """Find for each query the most similar people: person -> similarity of the nearest row, best first.

        queries: float32 [Q, D] of length 1. Exact: the cosines are computed once more in float64, so that they do not
        depend on the number of queries or the library.
        """
        most = max(1, min(len(self), (people - 1) * int(self._counts.max()) + 1 + _MORE))
        block = max(1, _CANDIDATES // most)
        blocks = [queries[start : start + block] for start in range(0, len(queries), block)]
        return [nearest for block in blocks for nearest in self._nearest(block, people, most)]

    def _nearest(self, queries: np.ndarray, people: int, most: int) -> list[dict[int, float]]:
        """Find the people among the `most` nearest rows, as `nearest` returns them."""
        best: list[dict[int, float]] = [{} for _ in queries]
        for part in self.parts:
            if not part.count:
                continue
            indices = _candidates(queries, part.embeddings[: part.count], most)
            for query, row, nearest in zip(queries, indices, best):
                cosines = part.embeddings[row].astype(np.float64) @ query
                for owner, cosine in zip(part.owners[row].tolist(), cosines.tolist()):
                    nearest[owner] = max(cosine, nearest.get(owner, -np.inf))
        return [dict(sorted(each.items(), key=lambda item: (-item[1], item[0]))[:people]) for each in best]


def _candidates(queries: np.ndarray, embeddings: np.ndarray, count: int) -> np.ndarray:
    """Find the rows [Q, count] that are most similar, by faiss or by blocks of NumPy's products."""
    count = min(count, len(embeddings))
    many = len(embeddings) >= FAISS_ROWS and len(queries) >= FAISS_QUERIES
    if many and find_spec("faiss") is not None:
        import faiss

        faiss.omp_set_num_threads(environment.cpu_threads())  # importing Paddle sets OMP_NUM_THREADS=1
        return faiss.knn(queries, embeddings, count, metric=faiss.METRIC_INNER_PRODUCT)[1]  # without a copy
    return search(queries, embeddings, count)[1]


class _Part:
    """Rows that lie one after the other: the first `count` of the arrays."""

    def __init__(self, embeddings: np.ndarray, owners: np.ndarray, lengths: np.ndarray):
        self.embeddings = embeddings
        self.owners = owners
        self.lengths = lengths
        self.count = len(owners)

    def find(self, owner: int) -> np.ndarray:
        return np.flatnonzero(self.owners[: self.count] == owner)

    def append(self, embeddings: np.ndarray, owners: np.ndarray, lengths: np.ndarray) -> None:
        stop = self.count + len(embeddings)
        if stop > len(self.owners):
            more = max(2 * len(self.owners), stop, 64) - self.count
            self.embeddings = _grown(self.embeddings[: self.count], more)
            self.owners = _grown(self.owners[: self.count], more)
            self.lengths = _grown(self.lengths[: self.count], more)
        rows = slice(self.count, stop)
        self.embeddings[rows], self.owners[rows], self.lengths[rows] = embeddings, owners, lengths
        self.count = stop

    def remove(self, at: np.ndarray) -> None:
        for row in at[::-1].tolist():  # from the end, so that the last row is never one to remove
            self.count -= 1
            for array in (self.embeddings, self.owners, self.lengths):
                array[row] = array[self.count]


def _grown(array: np.ndarray, more: int) -> np.ndarray:
    return np.concatenate([array, np.zeros((more, *array.shape[1:]), array.dtype)])
