"""A data set whose samples tell which they are. It is defined here, so that workers can import it."""

from __future__ import annotations

import numpy as np

from plsc.data.dataset import Dataset
from plsc.errors import CorruptImageError, MissingFileError


class Counting(Dataset):
    """Sample i is an image of i and its epoch, modulo 256. Its label is 3 i. Those in `corrupt` cannot be
    decoded."""

    image_shape = (1, 1, 2)

    def __init__(self, size: int, corrupt: tuple[int, ...] = (), missing: tuple[int, ...] = ()):
        self.num_classes, self.labels = 3 * size, 3 * np.arange(size)
        self.corrupt, self.missing = set(corrupt), set(missing)

    def sample(self, index: int, epoch: int) -> np.ndarray:
        if index in self.missing:
            raise MissingFileError(f"{index}.jpg: no such image")
        if index in self.corrupt:
            raise CorruptImageError(f"{self.name(index)}: not an image that OpenCV can decode")
        return np.array([[[index % 256, epoch % 256]]], np.uint8)

    def name(self, index: int) -> str:
        return f"record {index} (train.rec @ {4096 * index})"
