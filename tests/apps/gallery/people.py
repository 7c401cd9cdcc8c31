"""People without faces: 4 x 4 pictures that are embedded as they are, and galleries with them."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from plsc.apps.gallery.embed import EmbeddingNetwork
from plsc.utils.preprocessing import Preprocessing

SIDE = 4
NAMES = ["Ann", "Bob", "Cy"]


class Pixels(EmbeddingNetwork):
    """A network whose embeddings are the pixels, less their mean grey."""

    finds_faces = False

    def __init__(self, identity="pixels", threshold=0.5, trained=()):
        preprocessing = Preprocessing((3, SIDE, SIDE))
        super().__init__(identity, identity, {"network": "none.onnx"}, preprocessing)
        self.pair_threshold, self._trained = threshold, trained

    def _embed(self, samples):
        return samples.reshape(len(samples), -1).astype(np.float32) - 127.5

    def trained_on(self):
        return frozenset(self._trained)


def picture(name: str, number: int = 0, noise: int = 40) -> bytes:
    """A PNG of a person: the person's own colours, and noise that is each picture's own."""
    own = np.random.default_rng([*name.encode()]).integers(60, 196, (SIDE, SIDE, 3))
    draw = np.random.default_rng([number, *name.encode()])
    pixels = own + draw.integers(-noise, noise + 1, own.shape)
    return cv2.imencode(".png", pixels.astype(np.uint8))[1].tobytes()


def people(count: int, pictures: int = 3) -> dict[str, list[bytes]]:
    return {f"p{person}": [picture(f"p{person}", n) for n in range(pictures)] for person in range(count)}


def folder_of(path: Path, names=NAMES, pictures: int = 2) -> Path:
    """A folder with a folder of pictures for each person."""
    for name in names:
        (path / name).mkdir(parents=True)
        for number in range(pictures):
            (path / name / f"{number}.png").write_bytes(picture(name, number))
    return path
