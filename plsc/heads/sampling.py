"""Choose the classes of a step: a random part of all of them, and every positive (An et al., Partial FC, CVPR
2022). Symbols: softmax.py.

The draw is made by blocks of class numbers, each from (seed, block, step) alone: it is the same for any
number of ranks, a resumed run draws it again, and it is known before the step's samples are. Integers only.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

_BLOCK = 131_072  # classes that are drawn from together; changing it changes every run's draws


class ClassShard(NamedTuple):
    """The contiguous range [start, stop) of the `num_classes` classes whose centres one rank holds."""

    num_classes: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


def draw_classes(shard: ClassShard, rate: float, seed: int, step: int) -> np.ndarray:
    """Draw the classes of the shard that take part in a step whatever its samples are: int64, rising,
    numbered from the shard's start.

    Of a block of n classes int(rate n) are drawn without replacement, and one more with the probability of
    what int cut off, so each class takes part with probability `rate`, independently in each step. A rank
    whose shard cuts a block draws all of it and keeps its part: the draws of any number of ranks are parts of
    the same. The cost follows that of the classes drawn (numpy keeps a set of them where few are wanted, else
    8 bytes for each class of one block).

    Args:
        rate: the sample rate, in (0, 1].
        step: its number, at least 0.
    """
    parts = [np.empty(0, np.int64)]
    for block in range(shard.start // _BLOCK, -(-shard.stop // _BLOCK)):
        first = block * _BLOCK
        size = min(_BLOCK, shard.num_classes - first)
        rng = np.random.Generator(
            np.random.Philox(key=np.array([seed, block], np.uint64), counter=[0, 0, 0, step])
        )
        count = int(rate * size)
        count += rng.random() < rate * size - count
        parts.append(np.sort(rng.choice(size, count, replace=False, shuffle=False)) + first)
    drawn = np.concatenate(parts)
    low, high = np.searchsorted(drawn, [shard.start, shard.stop])
    return drawn[low:high] - shard.start


def merge_classes(drawn: np.ndarray, positives: np.ndarray) -> np.ndarray:
    """Unite a draw with the classes of the step's samples that lie in this shard, both int64, rising, each
    once: the classes that take part, int64 [K], rising.

    In the paper positives take places of the draw, and K = max(positives, rate S). Here they come on top,
    which makes the draw independent of them and of the ranks: K is about rate S, and larger by the positives
    that were not drawn.
    """
    place = np.searchsorted(drawn, positives)
    missing = place == np.searchsorted(drawn, positives, side="right")
    return np.insert(drawn, place[missing], positives[missing])


class DrawAhead:
    """Draws the classes of a step on a thread while the step before runs.

    shard, rate, seed: as of `draw_classes`.
    """

    def __init__(self, shard: ClassShard, rate: float, seed: int):
        self._drawn_by = shard, rate, seed
        self._thread = ThreadPoolExecutor(1, "draw")
        self._ahead: tuple[int, Future] | None = None

    def take(self, step: int) -> np.ndarray:
        """Return what `draw_classes` does, and begin to draw for the next step."""
        number, drawn = self._ahead or (None, None)
        if number != step:
            drawn = self._thread.submit(draw_classes, *self._drawn_by, step)
        self._ahead = step + 1, self._thread.submit(draw_classes, *self._drawn_by, step + 1)
        return drawn.result()

    def following(self) -> Callable[[], np.ndarray]:
        """Return a call that waits for the classes of the step after the last one taken."""
        return self._ahead[1].result
