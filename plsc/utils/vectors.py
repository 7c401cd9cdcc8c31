"""Bring vectors to length 1, so that their inner products are cosines."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def unit_rows(rows: np.ndarray, lengths: np.ndarray | None = None) -> np.ndarray:
    """Divide the rows [N, D] of an array of floats by their lengths, in its dtype; rows of zeros stay zeros.

    lengths: of the rows [N], for who has them already; None: they are computed.
    """
    if lengths is None:
        lengths = np.linalg.norm(rows, axis=1)
    return rows / np.where(lengths == 0, lengths.dtype.type(1), lengths)[:, np.newaxis]


def unit_embeddings(embed: Callable[[np.ndarray], np.ndarray], samples: np.ndarray, flip: bool) -> np.ndarray:
    """Embed samples [B, *shape] at length 1, float32 [B, D].

    flip: an image's and its mirror image's embeddings, both of length 1, are added first: an export gives no
    others.
    """
    embeddings = unit_rows(embed(samples))
    if not flip:
        return embeddings
    mirrored = embed(np.ascontiguousarray(samples[..., ::-1]))
    return unit_rows(embeddings + unit_rows(mirrored))
