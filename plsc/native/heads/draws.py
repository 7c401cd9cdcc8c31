"""Draw any rows of a large normal matrix, without drawing the others, by a kernel.

The numbers equal numpy's, which draws a block's rows one after the other from one stream. A number takes
a random count of random words, so a row's position in the stream is known only after the rows before it
were drawn. The first call that reads rows of a block therefore draws its whole stream. It notes a position
every few rows. Later calls draw the block's rows from the last noted position before them. The threads share
the blocks.
Try it: `pytest tests/native/heads/test_draws.py`.
"""

import math

import numpy as np

from plsc.native import address, compiled

_APART = 256  # Numbers between two noted positions. Each position takes 4 bytes.


class NormalRows:
    """Draw rows [start, stop) of a normal matrix.

    Each block of rows, counted from row 0, equals
    `Generator(PCG64([seed, number of the block])).standard_normal((block, width), float32)` times std.

    Args:
        seed: the matrix's seed.
        start: first row.
        stop: row after the last one.
        width: column count.
        std: standard deviation.
        block: rows in a block.
        dtype: "float32", or "uint16" for the bits of bfloat16 numbers, to which the numbers are rounded.
    """

    def __init__(
        self,
        seed: int,
        start: int,
        stop: int,
        width: int,
        std: float,
        block: int,
        dtype: str = "float32",
    ):
        self._dtype = np.dtype(dtype)
        self._start = start % block  # position in the first block
        self._stop = self._start + stop - start
        self._width = width
        self._std = std
        self._block = block
        self._apart = math.gcd(block, 1 << (max(1, _APART // width).bit_length() - 1))
        blocks = range(start // block, -(-stop // block))
        self._states = np.array([_state(seed, number) for number in blocks], np.uint64)
        self._marks = np.zeros((len(blocks), block // self._apart), np.uint32)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Draw rows: [k, width]. Only one thread at a time may call this.

        Args:
            rows: their numbers, int64 [k], counted from `start`.
        """
        if (rows[1:] <= rows[:-1]).any():  # the kernel takes ascending rows
            ascending, place = np.unique(rows, return_inverse=True)
            return self(ascending)[place]
        drawn = np.empty((len(rows), self._width), self._dtype)
        rows = rows + self._start
        assert not len(rows) or (rows.min() >= self._start and rows.max() < self._stop)
        compiled().plsc_draw_rows(
            address(self._states, "uint64"),
            address(self._marks, "uint32"),
            self._block,
            self._apart,
            self._width,
            address(rows, "int64", [len(drawn)]),
            len(rows),
            self._std,
            self._dtype == np.uint16,
            address(drawn, self._dtype.name),
        )
        return drawn


def _state(seed: int, block: int) -> list[int]:
    """Return the state and the increment of a block's generator, each with its low 64 bits first."""
    state = np.random.PCG64([seed, block]).state["state"]
    return [number >> shift & 2**64 - 1 for number in (state["state"], state["inc"]) for shift in (0, 64)]
