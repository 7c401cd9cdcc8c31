"""Give an array of a bank to a checkpoint without copying it whole."""

from collections.abc import Callable

import numpy as np

from plsc.native.bfloat16 import float32_of


class StateRows:
    """Presents an array, and reads rows only when a slice of them is asked for.

    bfloat16 is given as uint16, its bits; `code` names it in a checkpoint's file.

    Args:
        read: returns the rows of a slice with start and stop.
    """

    def __init__(self, read: Callable[[slice], np.ndarray], dtype: np.dtype, shape: tuple[int, ...]):
        self._read = read
        self.dtype = np.dtype(dtype)
        self.shape = shape
        self.code = "BF16" if self.dtype == np.uint16 else None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self._read(slice(*rows.indices(len(self))[:2]))

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.asarray(float32_of(self[:]), dtype)
