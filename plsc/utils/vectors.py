"""Bring vectors to length 1, so that their inner products are cosines."""

import numpy as np


def unit_rows(rows: np.ndarray, lengths: np.ndarray | None = None) -> np.ndarray:
    """Divide the rows [N, D] of an array of floats by their lengths, in its dtype; rows of zeros stay zeros.

    lengths: of the rows [N], for who has them already; None: they are computed.
    """
    if lengths is None:
        lengths = np.linalg.norm(rows, axis=1)
    return rows / np.where(lengths == 0, lengths.dtype.type(1), lengths)[:, np.newaxis]
