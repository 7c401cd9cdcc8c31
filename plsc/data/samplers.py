"""Choose the order of the samples in an epoch.

An order depends on seed, epoch and labels alone, so it is the same on any number of ranks; the loader cuts it into
global batches and gives each rank its slice. To see one:

    Shuffle(10, seed=0).order(epoch=3)
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from plsc.data.transforms import ORDER, generator


class Sampler(ABC):
    """Gives the order of each epoch; `len` is the number of samples of an epoch, the same in every one."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def order(self, epoch: int) -> np.ndarray:
        """Choose the samples of an epoch: a new array int64 [len(self)] of indices, of which some may be
        missing and others repeat."""


class Shuffle(Sampler):
    """Permutes all `count` samples, anew in each epoch."""

    def __init__(self, count: int, seed: int):
        self._count = count
        self._seed = seed

    def __len__(self) -> int:
        return self._count

    def order(self, epoch: int) -> np.ndarray:
        return generator(self._seed, epoch, use=ORDER).permutation(self._count)
