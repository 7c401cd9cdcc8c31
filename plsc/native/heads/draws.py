"""Draw rows of a large matrix of normal numbers, any of them by themselves, by a kernel.

The numbers are those of numpy, which draws a block of rows one after the other from one stream. How many
random words a number takes is random, too, so a row's place in the stream is only known after the rows before
it were drawn. The first row that is wanted of a block costs one pass over its stream. The pass notes the
place of every few rows, and later rows of the block are drawn from the place before them.
Try it: `pytest tests/native/heads/test_draws.py`.
"""

import math

import numpy as np

from plsc.native import address, compiled

_APART = 1024  # numbers between two places that are noted; each takes 4 bytes


class NormalRows:
    """Rows [start, stop) of a matrix of normal numbers with `width` columns and standard deviation `std`.

    Each `block` of its rows, counted from row 0, is
    `Generator(PCG64([seed, number of the block])).standard_normal((block, width), float32)` times std.
    """

    def __init__(self, seed: int, start: int, stop: int, width: int, std: float, block: int):
        self._start = start % block  # in the first block
        self._stop = self._start + stop - start
        self._width = width
        self._std = std
        self._block = block
        self._apart = math.gcd(block, 1 << (max(1, _APART // width).bit_length() - 1))
        blocks = range(start // block, -(-stop // block))
        self._states = np.array([_state(seed, number) for number in blocks], np.uint64)
        self._marks = np.zeros((len(blocks), block // self._apart), np.uint32)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Draw these rows, int64 [k], counted from `start`: float32 [k, width]. One thread at a time
        may call it."""
        drawn = np.empty((len(rows), self._width), np.float32)
        rows = rows + self._start
        assert not len(rows) or (rows.min() >= self._start and rows.max() < self._stop)
        compiled().plsc_draw_rows(
            address(self._states, "uint64"),
            address(self._marks, "uint32"),
            self._block,
            self._apart,
            self._width,
            address(rows, "int64"),
            len(rows),
            self._std,
            address(drawn),
        )
        return drawn


def _state(seed: int, block: int) -> list[int]:
    """Return state and increment of the block's generator, the low 64 bits of each first."""
    state = np.random.PCG64([seed, block]).state["state"]
    return [number >> shift & 2**64 - 1 for number in (state["state"], state["inc"]) for shift in (0, 64)]
