"""Choose a step's classes: a random part of all classes, and every positive class (An et al., Partial
FC, CVPR 2022). softmax.py defines the symbols.

Classes are drawn in blocks of class numbers. A block's draw depends only on the seed, the sample rate, the
step, and the block's number and size. It is therefore the same on any number of ranks, and known before the
step's samples are. A run that is resumed with the same seed and rate repeats it, without a stored generator.
All results are integers.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

_BLOCK = 131_072  # classes in one draw. Changing this number changes every run's draws.


class ClassShard(NamedTuple):
    """The contiguous range [start, stop) of the `num_classes` classes whose centres one rank holds."""

    num_classes: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


def draw_classes(shard: ClassShard, rate: float, seed: int, step: int) -> np.ndarray:
    """Draw the shard's classes that take part in a step independently of its samples.

    From a block of n classes, int(rate n) are drawn without replacement. One more is drawn with a probability
    equal to the fraction that int cut off. Each class is therefore drawn with probability `rate`. Draws for
    different steps are independent. The classes of one draw are not independent of each other, because their
    count is nearly fixed.

    If a shard contains a block only partly, its rank draws the whole block and keeps its part. All ranks'
    draws therefore form the same set on any number of ranks. The cost grows with how many classes
    are drawn. If few are drawn, numpy keeps a set. Otherwise it keeps 8 bytes for each class in
    one block.

    Args:
        shard: classes to draw from.
        rate: sample rate, in (0, 1].
        seed: seed for the draws.
        step: step number, at least 0.

    Returns class numbers counted from the shard's start, int64, ascending.
    """
    parts = [np.empty(0, np.int64)]
    rng = np.random.Generator(np.random.Philox(counter=[0, 0, 0, step], key=np.array([seed, 0], np.uint64)))
    state = rng.bit_generator.state
    for block in range(shard.start // _BLOCK, -(-shard.stop // _BLOCK)):
        first = block * _BLOCK
        size = min(_BLOCK, shard.num_classes - first)
        state["state"]["key"][1] = block  # a new generator would take as long as the draw itself
        rng.bit_generator.state = state
        count = int(rate * size)
        count += rng.random() < rate * size - count
        parts.append(np.sort(rng.choice(size, count, replace=False, shuffle=False)) + first)
    drawn = np.concatenate(parts)
    low, high = np.searchsorted(drawn, [shard.start, shard.stop])
    return drawn[low:high] - shard.start


def merge_classes(drawn: np.ndarray, positives: np.ndarray) -> np.ndarray:
    """Merge a draw with this shard's positive classes.

    In the paper, positive classes replace drawn ones, and K = max(positives, rate S). Here they are added to
    the draw, which keeps the draw independent of the samples and the world size. K is about rate
    S plus the positive classes that were not drawn.

    Args:
        drawn: drawn classes, int64, ascending, without duplicates.
        positives: the step's classes that lie in this shard, int64, ascending, without
            duplicates.

    Returns the classes that take part, int64 [K], ascending.
    """
    position = np.searchsorted(drawn, positives)
    missing = position == np.searchsorted(drawn, positives, side="right")
    return np.insert(drawn, position[missing], positives[missing])


class DrawAhead:
    """Draws a step's classes on a thread while the previous step runs. The arguments are passed to
    `draw_classes`."""

    def __init__(self, shard: ClassShard, rate: float, seed: int):
        self._draw_arguments = shard, rate, seed
        self._thread = ThreadPoolExecutor(1, "draw")
        self._ahead: tuple[int, Future] | None = None

    def take(self, step: int) -> np.ndarray:
        """Return `draw_classes` for this step, and start the draw for the next step."""
        number, drawn = self._ahead or (None, None)
        if number != step:
            drawn = self._thread.submit(draw_classes, *self._draw_arguments, step)
        self._ahead = step + 1, self._thread.submit(draw_classes, *self._draw_arguments, step + 1)
        return drawn.result()

    def following(self) -> Callable[[], np.ndarray]:
        """Return a function that waits for the draw after the last one taken, and returns it."""
        return self._ahead[1].result
