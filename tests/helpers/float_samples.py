"""A data set whose samples are no images: float32 [1, 20, 12], as spectrograms of short recordings are."""

from __future__ import annotations

import numpy as np

from plsc.data.dataset import Dataset, PairSet

SHAPE = (1, 20, 12)


def recording(speaker: int, rng: np.random.Generator) -> np.ndarray:
    """The speaker's spectrum, and noise."""
    spectrum = np.random.default_rng([1, speaker]).normal(size=(1, SHAPE[1], 1))
    return (spectrum + 0.5 * rng.normal(size=SHAPE)).astype(np.float32)


class Recordings(Dataset):
    def __init__(self, speakers: int = 23, count: int = 5, seed: int = 0):
        self.num_classes, self.seed = speakers, seed
        self.labels = np.repeat(np.arange(speakers, dtype=np.int64), count)
        self.sample_shape, self.sample_dtype = SHAPE, "float32"

    def sample(self, index: int, epoch: int) -> np.ndarray:
        return recording(int(self.labels[index]), np.random.default_rng([self.seed, epoch, index]))


class RecordingPairs(PairSet):
    name = "recordings"
    sample_shape, sample_dtype = SHAPE, np.float32

    def __init__(self, speakers: int = 20):
        self.num_images = 4 * speakers
        first = np.arange(0, self.num_images, 4)
        self.pairs = np.stack(
            [np.stack([first, first + 1], 1), np.stack([first + 2, np.roll(first, 1) + 3], 1)], axis=1
        ).reshape(-1, 2)
        self.same = np.arange(len(self.pairs)) % 2 == 0

    def image(self, index: int) -> np.ndarray:
        return recording(1000 + index // 4, np.random.default_rng([7, index]))


class Doubles(Recordings):
    """Declares float32 and makes float64."""

    def sample(self, index: int, epoch: int) -> np.ndarray:
        return super().sample(index, epoch).astype(np.float64)


class Whole(Recordings):
    """The same in whole numbers, of which the network sees (number - 100) / 50."""

    def __init__(self, seed: int = 0):
        super().__init__(seed=seed)
        self.sample_dtype, self.mean, self.scale = np.int16, 100, 0.02

    def sample(self, index: int, epoch: int) -> np.ndarray:
        return np.rint(100 * super().sample(index, epoch)).astype(np.int16)


class Poisoned(Recordings):
    """Sample 7 has a number that is none."""

    def sample(self, index: int, epoch: int) -> np.ndarray:
        made = super().sample(index, epoch)
        made[0, 0, 0] = np.nan if index == 7 else made[0, 0, 0]
        return made
