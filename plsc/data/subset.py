"""Take some samples of a data set, augmented as in the whole: what Without and Corrected have in common."""

from __future__ import annotations

import numpy as np

from plsc.data.dataset import Dataset
from plsc.data.preprocessing import Preprocessing


class Subset(Dataset):
    """Takes the samples `kept` of `data`: their indices, rising, int64. Labels and classes are the subclass's."""

    def __init__(self, data: Dataset, kept: np.ndarray):
        self._data = data
        self._kept = kept

    @property
    def preprocessing(self) -> Preprocessing:
        return self._data.preprocessing

    @property
    def title(self) -> str:
        return self._data.title

    def sample(self, index: int, epoch: int) -> np.ndarray:
        return self._data.sample(int(self._kept[index]), epoch)

    def name(self, index: int) -> str:
        return self._data.name(int(self._kept[index]))

    def substitutes(self, index: int) -> tuple[int, int]:
        start, stop = np.searchsorted(self._kept, self._data.substitutes(int(self._kept[index])))
        return int(start), int(stop)
