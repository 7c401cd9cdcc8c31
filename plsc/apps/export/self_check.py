"""Write a sample and its embedding beside the graphs, for trying out the code around them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from plsc.apps.export.card import noun_of
from plsc.apps.export.reference import random_samples

HOW_TO_READ = {
    "RGB": "cv2.imread('check.png')[..., ::-1].transpose(2, 0, 1)  # OpenCV reads BGR, the graph takes RGB",
    "BGR": "cv2.imread('check.png').transpose(2, 0, 1)",
    "grey": "cv2.imread('check.png', cv2.IMREAD_GRAYSCALE)[None]",
}


def sample_to_check(preprocessing: Any) -> np.ndarray:
    """Make a sample [*shape]: an image whose channels and halves differ, or random numbers."""
    return _pattern(preprocessing.shape) if preprocessing.is_image else random_samples(preprocessing, 1)[0]


def write_self_check(folder: Path, preprocessing: Any, sample: np.ndarray, embedding: np.ndarray) -> dict:
    """Write a sample [*shape] and its embedding [D], for trying out the code around the graph.

    An image is a .png where the channels are ones that a .png has, so that reading it and the order of its
    channels are tried, too; any other sample an .npy.
    """
    name = "check.png" if preprocessing.channels in HOW_TO_READ else "check.npy"
    if name == "check.png":
        picture = sample[::-1] if preprocessing.channels == "RGB" else sample  # OpenCV writes BGR
        cv2.imwrite(str(folder / name), np.moveaxis(picture, 0, -1))
    else:
        np.save(folder / name, sample)
    text = json.dumps(
        {noun_of(preprocessing): name, "embedding": [round(number, 7) for number in embedding.tolist()]}
    )
    (folder / "check.json").write_text(text + "\n")
    return {noun_of(preprocessing): name, "embedding": "check.json", "least_cosine": 0.999}


def _pattern(shape: tuple[int, int, int]) -> np.ndarray:
    """Draw an image that is another one when its channels are exchanged or it is mirrored, uint8 [C, H, W]."""
    channels, height, width = shape
    y, x = np.mgrid[0:height, 0:width]
    image = np.stack([(x * (5 + 2 * k) + y * (3 + k) + 60 * k) % 256 for k in range(channels)]).astype(
        np.uint8
    )
    image[0, height // 4 : height // 2, : width // 3] = 255
    return image
