"""Partial FC's choice of classes: every positive of the step, and negatives drawn at random (An et al., Partial FC, CVPR 2022).

    S classes in this rank's shard   K of them chosen

Integers and numpy only. The draw depends on (seed, step, rank) alone, so a resumed run draws the same rows.
"""

from __future__ import annotations

import numpy as np


def choose_classes(
    positives: np.ndarray, shard_size: int, rate: float, seed: int, step: int, rank: int
) -> np.ndarray:
    """The classes of the shard that take part in a step: int64 [K], rising, K = max(positives, int(rate * S)).

    The negatives are a uniform draw without replacement from the classes that are no positives. Its cost grows with K (numpy
    keeps a set of what it has drawn while K is below S / 50, and 8 S bytes, at most 400 K, from there on).

    Args:
        positives: the classes of the step's samples that lie in this shard, int64, rising, each once.
        rate: the sample rate, in (0, 1].
    """
    wanted = max(0, int(rate * shard_size) - len(positives))
    rng = np.random.Generator(
        np.random.Philox(key=np.array([seed, rank], np.uint64), counter=[0, 0, 0, step])
    )
    rank_among_negatives = rng.choice(shard_size - len(positives), wanted, replace=False, shuffle=False)
    # The r-th negative is r plus the number of positives before it; the i-th positive has p_i - i negatives before it.
    before = np.searchsorted(positives - np.arange(len(positives)), rank_among_negatives, side="right")
    return np.sort(np.concatenate([positives, rank_among_negatives + before]))
