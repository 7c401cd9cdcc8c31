"""For each query, find a gallery's k most similar rows, exactly and without an index.

Each query block and each gallery block take one matrix product. After the first gallery
block, only the few similarities above a query's k-th best so far are sorted. In a float32 gallery
[1,000,000, 512], two cores answer about 100 queries a second. Try it:

    search(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32), 2)
"""

import numpy as np

from plsc.errors import UserError

QUERIES, GALLERY = 512, 4096  # rows per block, whose similarities take 8 MB
_ALIKE = 1e-6  # largest difference that counts as float32 rounding
# The order in which BLAS sums products depends on the matrix's shape, and it differs for rows beyond a
# multiple of BLAS's tile. Equal rows would then have similarities that differ in the last bit, and the order
# of the answers would be arbitrary. All gallery blocks therefore have the same height, which is a
# multiple of TILE. The last block begins within the one before it. If a gallery has only one block, zeros
# fill it.
TILE = 64


def search(queries: np.ndarray, gallery: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the gallery's k most similar rows for each query.

    Args:
        queries: float32 [Q, D], finite.
        gallery: float32 [G, D], finite.
        k: rows per query. If it is above G, it is reduced to G.

    Returns the similarities (inner products), float32 [Q, k], and the gallery's rows, int64 [Q, k], the
    best first. Among equal similarities, the lower row comes first.
    """
    k = min(k, len(gallery))
    score, index = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
    for start in range(0, len(queries), QUERIES):
        rows = slice(start, start + QUERIES)
        score[rows], index[rows] = _search(queries[rows], gallery, k)
    return score, index


def _search(queries: np.ndarray, gallery: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    score = np.full((len(queries), k), -np.inf, np.float32)
    index = np.zeros((len(queries), k), np.int64)
    waiting: list[tuple[np.ndarray, ...]] = []  # each block's candidates: query, gallery row, similarity
    height = min(GALLERY, -(-len(gallery) // TILE) * TILE)
    for start in range(0, len(gallery), height):
        first = max(0, min(start, len(gallery) - height))  # row of the gallery at which the block begins
        block = gallery[first : first + height]
        if rest := height - len(block):
            block = np.concatenate([block, np.zeros((rest, block.shape[1]), block.dtype)])
        similarity = (queries @ block.T)[:, start - first : len(gallery) - first]
        if start == 0 and len(similarity[0]) > k:  # sort only the block's k best
            limit = -np.partition(-similarity, k - 1, axis=1)[:, k - 1 : k]
            row, column = np.nonzero(similarity >= limit)
        else:
            rows = np.flatnonzero(similarity.max(axis=1) > score[:, -1])  # few queries have a better one here
            better = similarity[rows] > score[rows, -1:]
            row, column = np.divmod(np.flatnonzero(better), better.shape[1])  # faster than np.nonzero
            row = rows[row]
        waiting.append((row, column + start, similarity[row, column]))
        # A merge takes as long for one candidate as for a hundred, so the later blocks' few ones wait.
        if sum(len(row) for row, *_ in waiting) >= len(queries) or start + height >= len(gallery):
            row, column, found = map(np.concatenate, zip(*waiting))
            order = np.argsort(row, kind="stable")
            _merge(score, index, row[order], column[order], found[order])
            waiting.clear()
    return score, index


def _merge(
    score: np.ndarray, index: np.ndarray, row: np.ndarray, column: np.ndarray, similarity: np.ndarray
) -> None:
    """Merge candidates into the best so far, in place.

    Args:
        score, index: float32 and int64 [Q, k], the best so far.
        row, column: int64 [C], each candidate's query and gallery row, sorted by both.
        similarity: float32 [C].
    """
    if not len(row):
        return
    k = score.shape[1]
    rows, first, count = np.unique(row, return_index=True, return_counts=True)
    place = k + np.arange(len(row)) - np.repeat(first, count)
    width = k + int(count.max())
    scores, indices = np.full((len(rows), width), -np.inf, np.float32), np.zeros((len(rows), width), np.int64)
    scores[:, :k], indices[:, :k] = score[rows], index[rows]
    line = np.repeat(np.arange(len(rows)), count)
    scores[line, place], indices[line, place] = similarity, column
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    score[rows] = np.take_along_axis(scores, best, 1)
    index[rows] = np.take_along_axis(indices, best, 1)


def row_lengths(rows: np.ndarray) -> np.ndarray:
    """Compute the lengths of rows [N, D], in their dtype.

    This rule holds everywhere in plsc. The length is 0 if a row's squares are 0. It is NaN if a row is not
    finite, or if its squares overflow. No other row is treated specially.
    """
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(rows, axis=1)
    lengths[np.isinf(lengths)] = np.nan
    return lengths


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Divide rows [N, D] of floats by their `row_lengths`, in their dtype. Rows of length 0 stay as they
    are."""
    lengths = row_lengths(rows)
    lengths[lengths == 0] = 1
    return rows / lengths[:, np.newaxis]


def all_alike(embeddings: np.ndarray) -> bool:
    """Return whether all embeddings [N, D] have the same direction, or all are zeros.

    Return False if there are fewer than two.
    """
    if len(embeddings) < 2:
        return False
    first = unit_rows(embeddings[:1])
    blocks = (embeddings[start : start + GALLERY] for start in range(0, len(embeddings), GALLERY))
    return all((np.abs(unit_rows(block) - first) <= _ALIKE).all() for block in blocks)


def finite_unit_rows(embeddings: np.ndarray, rows: np.ndarray, what: str) -> np.ndarray:
    """Return some rows of embeddings at length 1, float32 [n, D]. Zeros stay zeros.

    Args:
        embeddings: float [N, D].
        rows: int64 [n], the rows.
        what: the evaluation's kind, with which the UserError begins.

    Raises UserError if one of the rows is not finite.
    """
    unit = unit_rows(embeddings[rows].astype(np.float32, copy=False))
    refuse_not_finite(unit, what, rows)
    return unit


def refuse_not_finite(embeddings: np.ndarray, what: str, rows: np.ndarray | None = None) -> None:
    """Raise UserError if an embedding's length in float32 is not finite.

    Args:
        embeddings: float [N, D].
        what: the evaluation's kind, with which the UserError begins.
        rows: int64 [N], image numbers. None means 0, 1, ...
    """
    finite = np.isfinite(row_lengths(embeddings.astype(np.float32, copy=False)))
    if not finite.all():
        first = np.argmin(finite)
        raise UserError(
            f"{what}: the embedding of image {first if rows is None else rows[first]} is not finite;"
            " the network has diverged or the images are damaged: lower the learning rate, or check the "
            "images"
        )
