"""Synthesise images: a blurred random pattern for each class plus noise for each sample.

The set serves tests and throughput measurements. It needs neither fonts nor files. It can have any number
of classes, because it stores only the labels. Try it: `Synthetic().sample(0, epoch=0).shape`.
"""

from typing import Annotated

import numpy as np
from pydantic import Field

from plsc.data.dataset import Dataset
from plsc.data.transforms import PROTOTYPES, generator, resize

AtLeast1 = Annotated[int, Field(ge=1)]


class Synthetic(Dataset):
    """Random patterns, one per class, with noisy copies.

    - `num_classes`: how many patterns.
    - `images_per_class`: noisy copies per pattern.
    - `image_shape`: [C, H, W].
    - `identities`: how many classes have images, evenly spaced among all classes. The other classes only add
      to the head's classes. null means that all classes have images.
    """

    def __init__(
        self,
        num_classes: AtLeast1 = 1000,
        images_per_class: AtLeast1 = 10,
        image_shape: tuple[AtLeast1, AtLeast1, AtLeast1] = (1, 32, 32),
        seed: int = 0,
        identities: AtLeast1 | None = None,
    ):
        self.num_classes = num_classes
        count = num_classes if identities is None else identities
        self.labels = np.repeat(np.arange(count) * num_classes // count, images_per_class)
        self.image_shape = tuple(image_shape)
        self.seed = seed

    def sample(self, index: int, epoch: int) -> np.ndarray:
        channels, height, width = self.image_shape
        label = int(self.labels[index])
        coarse = generator(self.seed, 0, label, PROTOTYPES).integers(0, 256, (4, 4, channels), np.uint8)
        pattern = resize(coarse, height, width).reshape(height, width, channels).transpose(2, 0, 1)
        grain = generator(self.seed, epoch, index).integers(0, 64, self.image_shape, np.uint8)
        return pattern // 4 * 3 + grain

    def name(self, index: int) -> str:
        return f"synthetic class {self.labels[index]}, sample {index}"
