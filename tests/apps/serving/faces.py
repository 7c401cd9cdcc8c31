"""Pictures of people who do not exist, patterns with fine grain, and an embedder that knows them by their
coarse pattern."""

import cv2
import numpy as np

from plsc.apps.curate.alignment import SIZE, TEMPLATE
from plsc.apps.curate.detector import Face
from plsc.apps.serving.embedder import Embedder
from plsc.data.preprocessing import Preprocessing

SIDE = 32


class PatternEmbedder(Embedder):
    def __init__(self, threshold=0.5, aligned=None, **fields):
        super().__init__(
            "7" * 64,
            "patterns",
            Preprocessing.of_images((1, SIDE, SIDE), aligned=aligned),
            64,
            threshold=threshold,
            **fields,
        )

    def _embed(self, samples):
        coarse = samples.reshape(-1, 8, SIDE // 8, 8, SIDE // 8).mean(axis=(2, 4)).reshape(-1, 64)
        return (coarse - coarse.mean(axis=1, keepdims=True)).astype(np.float32)


def picture(person, number, unlike=0.5):
    """Draw a picture, uint8 [32, 32]; unlike: how much a person's pictures differ, of the difference between
    people."""
    ours = np.random.default_rng([person, 0]).standard_normal((8, 8))
    rng = np.random.default_rng([person, number + 1])
    coarse = ours + unlike * rng.standard_normal((8, 8))
    grain = rng.standard_normal((SIDE, SIDE))
    values = 128 + 20 * np.kron(coarse, np.ones((SIDE // 8, SIDE // 8))) + 12 * grain
    return np.clip(values, 0, 255).astype(np.uint8)


def write_people(folder, people, pictures):
    """Write pictures of each of a number of people: folder/p07/0.png, ..."""
    for person in range(people):
        (folder / f"p{person:02}").mkdir(parents=True)
        for number in range(pictures):
            cv2.imwrite(str(folder / f"p{person:02}/{number}.png"), picture(person, number))


class Finder:
    """Finds in each picture the faces whose offsets from ArcFace's places it is told, in shares of the
    side."""

    def __init__(self, *offsets):
        self.offsets = offsets

    def detect(self, rgb):
        height, width = rgb.shape[:2]
        sides = np.array([width, height])
        return [
            Face((0.0, 0.0, float(width), float(height)), 1.0, (TEMPLATE / SIZE + [offset, 0]) * sides)
            for offset in self.offsets
        ]
