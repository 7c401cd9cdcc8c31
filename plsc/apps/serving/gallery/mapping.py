"""Fit a linear map from the embeddings of one network to those of another, on pictures that both embed.

It carries the rows of a gallery over to another network where the pictures that they were made of are gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plsc.apps.serving.gallery.facts import Mapped
from plsc.apps.serving.gallery.pictures import Picture, embed_pictures
from plsc.errors import UserError
from plsc.utils.logging import get_logger
from plsc.utils.vectors import unit_rows

PENALTIES = (10.0, 1.0, 0.1, 0.01)
"""Of the ridge regression; the best one on the people left out is taken."""
LEFT_OUT = 5  # each fifth person is left out of the first fit, which is judged by them


@dataclass(frozen=True)
class FittedMap:
    """A map of embeddings.

    matrix: float32 [D of the old network, D of the new one]. new: the identity of the new network. facts:
    what a gallery notes.
    """

    matrix: np.ndarray
    new: str
    facts: Mapped

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Map embeddings float32 [N, D old] of length 1 to [N, D new] of length 1; zeros stay zeros."""
        return unit_rows(rows @ self.matrix)


def fit_map(old: Any, new: Any, people: Mapping[str, Sequence[Picture]]) -> FittedMap:
    """Fit a map from the embeddings of the embedder `old` to those of `new` by ridge regression.

    Args:
        people: name -> pictures of anybody; the names only keep a person's pictures on one side when the map is judged.

    Raises UserError where fewer than 2 * LEFT_OUT people have a picture that both networks can use.
    """
    pictures = [picture for paths in people.values() for picture in paths]
    owners = np.repeat(np.arange(len(people)), [len(paths) for paths in people.values()])
    names = [name for name, paths in people.items() for _ in paths]
    old_rows, old_kept, old_others = embed_pictures(old, pictures, names)
    new_rows, new_kept, new_others = embed_pictures(new, pictures, names)
    both, at_old, at_new = np.intersect1d(old_kept, new_kept, return_indices=True)
    if others := [*old_others, *new_others]:
        count = len(pictures) - len(both)
        get_logger().warning(f"--map: {count:,} pictures are left out, such as: {others[0].reason}")
    x, y = old_rows[at_old].astype(np.float64), new_rows[at_new].astype(np.float64)
    present, number = np.unique(owners[both], return_inverse=True)
    if len(present) < 2 * LEFT_OUT:
        raise UserError(
            f"--map: {len(present)} people have pictures that both networks can use; a map takes {2 * LEFT_OUT} at least, and is "
            "better of hundreds"
        )
    out = number % LEFT_OUT == LEFT_OUT - 1
    cosines = {
        penalty: float(
            np.mean(np.sum(unit_rows(x[out] @ _ridge(x[~out], y[~out], penalty)) * y[out], axis=1))
        )
        for penalty in PENALTIES
    }
    penalty = max(cosines, key=cosines.__getitem__)
    facts = Mapped(
        network=old.network,
        described=old.described,
        pictures=len(both),
        people=len(present),
        penalty=penalty,
        cosine=cosines[penalty],
    )
    return FittedMap(_ridge(x, y, penalty).astype(np.float32), new.network, facts)


def _ridge(x: np.ndarray, y: np.ndarray, penalty: float) -> np.ndarray:
    """Compute the W that minimises |x W - y|^2 + penalty |W|^2."""
    return np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ y)
