"""Draw pairs from labelled images.

Positive and negative pairs alternate, so that each of ten folds is balanced. The same arguments give the same
pairs for any run's seed. If a verification set changed from run to run, the accuracies could not be
compared. Try it: `draw_pairs(np.array([0, 0, 1, 1]), 4, "images")`.
"""

import numpy as np

from plsc.data.transforms import PAIRS, generator
from plsc.errors import UserError
from plsc.utils.logging import get_logger

PAIRS_SEED = 20180901
USUAL_PAIRS = 6000  # as many as LFW has


def draw_pairs(labels: np.ndarray, num_pairs: int | None, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Draw different pairs from labelled images.

    The classes with two or more images give equal numbers of positive pairs, as far as they have enough
    images.

    Args:
        labels: int64 [N], one per image.
        num_pairs: how many pairs. None: USUAL_PAIRS, or all possible pairs if they are fewer.
        where: the images' name for messages.

    Returns the pairs as image indices, int64 [P, 2], and whether each is positive, bool [P].

    Raises UserError if there are fewer different pairs than `num_pairs`.
    """
    most = 2 * min(int(_positives(labels)[2].sum()), _count_negatives(labels))
    if most == 0:
        raise UserError(f"{where}: has no pairs; pairs need two classes, and two images of one class")
    if num_pairs is None:
        num_pairs = min(USUAL_PAIRS, most)
        if num_pairs < USUAL_PAIRS:
            get_logger().info(
                f"{where}: has {num_pairs:,} different pairs, half of them positive; all are taken"
            )
    if num_pairs > most:
        rule = f"must be at most {most:,} (got {num_pairs:,}): {where} has no more different pairs of a kind"
        raise UserError(rule, key="num_pairs")
    rng = generator(PAIRS_SEED, use=PAIRS)
    num_positives = (num_pairs + 1) // 2
    positives = _draw_positives(labels, num_positives, rng)
    negatives = draw_negatives(labels, num_pairs - num_positives, rng)
    pairs = np.empty((num_pairs, 2), np.int64)
    pairs[0::2] = positives
    pairs[1::2] = negatives
    return pairs, np.arange(num_pairs) % 2 == 0


def _draw_positives(labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    order, starts, available = _positives(labels)
    quota = 1
    while np.minimum(available, quota).sum() < count:
        quota *= 2
    pairs = []
    turns = []
    for at in rng.permutation(np.flatnonzero(available)).tolist():
        chosen = rng.choice(available[at], min(quota, available[at]), replace=False)
        # Pair number n of a class is (first, second) with first < second and n = second (second - 1) / 2 +
        # first.
        second = ((1 + np.sqrt(1 + 8 * chosen.astype(np.float64))) / 2).astype(np.int64)
        second -= second * (second - 1) // 2 > chosen
        first = chosen - second * (second - 1) // 2
        pairs.append(starts[at] + np.stack([first, second], axis=1))
        turns.append(np.arange(len(chosen)))
    in_turn = np.argsort(np.concatenate(turns), kind="stable")[:count]
    return order[np.concatenate(pairs)[in_turn]]


def _positives(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sort the images by label, find each class's start, and count each class's different positive pairs.

    Returns the images' order, int64 [N], and for each class its start in this order and its pair
    count, both int64 [C].
    """
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    sizes = np.diff(starts, append=len(labels))
    return order, starts, sizes * (sizes - 1) // 2


def _count_negatives(labels: np.ndarray) -> int:
    sizes = np.unique(labels, return_counts=True)[1]
    return (len(labels) ** 2 - int((sizes.astype(object) ** 2).sum())) // 2


def draw_negatives(labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw different image pairs with different labels: indices, int64 [count, 2].

    Args:
        labels: int64 [N], one per image.
        count: how many pairs. There must be at least so many.
        rng: the random numbers.
    """
    images, available = len(labels), _count_negatives(labels)
    pairs = np.empty((0, 2), np.int64)
    if available < 4 * count:
        pairs = np.stack(np.triu_indices(images, k=1), axis=1)
        return rng.permutation(pairs[labels[pairs[:, 0]] != labels[pairs[:, 1]]])[:count]
    # Most draws are valid. Draw about twice as many as needed, and take the first different ones.
    while len(pairs) < count:
        drawn = np.sort(rng.integers(0, images, (2 * count + 100, 2)), axis=1)
        drawn = np.concatenate([pairs, drawn[labels[drawn[:, 0]] != labels[drawn[:, 1]]]])
        pairs = drawn[np.sort(np.unique(drawn, axis=0, return_index=True)[1])]
    return pairs[:count]
