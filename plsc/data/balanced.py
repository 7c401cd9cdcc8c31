"""Order an epoch so that its batches hold several images of each of their classes, for losses on pairs.

A triplet loss needs two images of a class in a batch; of 100,000 classes a shuffled batch of 256 has hardly
ever two. Here the images of a class are shuffled and cut into groups of m, and the groups are shuffled. A
class whose images are no multiple of m fills its last group with some of its others. So every image comes at
least once an epoch. Try it: `balanced_order(np.array([0, 0, 0, 1, 1]), 2, np.random.default_rng(0))`.
"""

import numpy as np


def balanced_length(labels: np.ndarray, per_class: int) -> int:
    """Count the samples of an epoch of `balanced_order`."""
    counts = np.bincount(labels)
    return int((-(-counts // per_class) * per_class).sum())


def balanced_order(labels: np.ndarray, per_class: int, draw: np.random.Generator) -> np.ndarray:
    """Order the samples of an epoch in groups of `per_class` samples of one class.

    Args:
        labels: int64 [N]. draw: what is random follows from it alone.

    Returns: indices of samples, int64 [balanced_length(labels, per_class)].
    """
    shuffled = draw.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    counts = np.bincount(labels)
    lengths = -(-counts // per_class) * per_class
    place = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)  # within its class
    first = np.repeat(np.cumsum(counts) - counts, lengths)
    groups = by_class[first + place % np.repeat(counts, lengths)].reshape(-1, per_class)
    return groups[draw.permutation(len(groups))].ravel()
