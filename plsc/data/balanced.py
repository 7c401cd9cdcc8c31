"""Order an epoch so that its batches contain several images of each class, for losses on pairs.

A triplet loss needs two images of a class in a batch. With 100,000 classes, a shuffled batch of 256 hardly
ever contains two. This module shuffles the images of a class, cuts them into groups with m images, and
shuffles the groups. If m does not divide a class's image count, other images from the class fill its last
group. Every image therefore comes at least once per epoch. Try it: `balanced_order(np.array([0, 0, 0, 1, 1]),
2, np.random.default_rng(0))`.
"""

import numpy as np


def balanced_length(labels: np.ndarray, per_class: int) -> int:
    """Count the samples in an epoch of `balanced_order`."""
    counts = np.bincount(labels)
    return int((-(-counts // per_class) * per_class).sum())


def balanced_order(labels: np.ndarray, per_class: int, draw: np.random.Generator) -> np.ndarray:
    """Order an epoch's samples in groups. Each group has `per_class` samples of one class.

    Args:
        labels: int64 [N], one per sample.
        per_class: group size.
        draw: the only source of random numbers.

    Returns sample indices, int64 [balanced_length(labels, per_class)].
    """
    shuffled = draw.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    counts = np.bincount(labels)
    lengths = -(-counts // per_class) * per_class
    place = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)  # place in its class
    first = np.repeat(np.cumsum(counts) - counts, lengths)
    groups = by_class[first + place % np.repeat(counts, lengths)].reshape(-1, per_class)
    return groups[draw.permutation(len(groups))].ravel()
