"""Synthesise images: a blurred random pattern for each class plus noise for each sample.

For throughput (no fonts, no disk, any number of classes: only labels are stored) and for tests.
"""

from __future__ import annotations

import numpy as np

from plsc.data.dataset import Dataset
from plsc.data.transforms import PROTOTYPES, generator, resize
from plsc.errors import UserError


class Synthetic(Dataset):
    """`num_classes` random patterns, `images_per_class` noisy copies of each. `image_shape` is [C, H, W].

    With `identities` only so many of the classes, evenly spread, have images; the others only add to the
    classes of the head. `num_samples`: so many images in all, evenly spread, instead of `images_per_class`.
    """

    def __init__(
        self,
        num_classes: int = 1000,
        images_per_class: int = 10,
        image_shape: tuple[int, int, int] = (1, 32, 32),
        seed: int = 0,
        identities: int | None = None,
        num_samples: int | None = None,
    ):
        self.check(num_classes=num_classes, images_per_class=images_per_class, image_shape=image_shape)
        if identities is not None and not 1 <= identities <= num_classes:
            raise UserError(
                f"must be in [1, num_classes = {num_classes}], got {identities}", key="identities"
            )
        self.num_classes = num_classes
        count = num_classes if identities is None else identities
        samples = count * images_per_class if num_samples is None else num_samples
        if samples < 1:
            raise UserError(f"must be at least 1, got {num_samples}", key="num_samples")
        self.labels = np.arange(samples, dtype=np.int64)
        for factor, divisor in ((count, samples), (num_classes, count)):  # in place: recipes have 42 million
            self.labels *= factor
            self.labels //= divisor
        self.image_shape = tuple(image_shape)
        self.seed = seed

    @classmethod
    def check(cls, **kwargs) -> None:
        for key in ("num_classes", "images_per_class", "image_shape"):
            if key in kwargs and np.min(kwargs[key]) < 1:
                raise UserError(f"must be at least 1, got {kwargs[key]}", key=key)

    def sample(self, index: int, epoch: int) -> np.ndarray:
        channels, height, width = self.image_shape
        label = int(self.labels[index])
        coarse = generator(self.seed, 0, label, PROTOTYPES).integers(0, 256, (4, 4, channels), np.uint8)
        pattern = resize(coarse, height, width).reshape(height, width, channels).transpose(2, 0, 1)
        grain = generator(self.seed, epoch, index).integers(0, 64, self.image_shape, np.uint8)
        return pattern // 4 * 3 + grain

    def name(self, index: int) -> str:
        return f"synthetic class {self.labels[index]}, sample {index}"
