"""Describe an export: the content of preprocessing.json."""

from __future__ import annotations

from typing import Any

import paddle

from plsc.data.preprocessing import DARKEST
from plsc.utils.version import __version__

VALUES = "raw pixels 0..255; normalisation is inside the graph"
RESIZE = "to the size, whatever the aspect ratio: area averages to shrink (cv2.INTER_AREA), linear to enlarge (cv2.INTER_LINEAR)"


def make_card(preprocessing: Any, embedding_size: int, threshold: float | None, flip: bool) -> dict:
    """Make the content of preprocessing.json but "files" (per format: names of files, input, output) and
    "checks"."""
    shape = list(preprocessing.shape)
    # What is left to do. Mean and scale are not among it: a reader who saw them here would normalise once
    # more.
    if preprocessing.is_image:
        values, left = VALUES, {"size": shape[1:], "channels": preprocessing.channels, "resize": RESIZE}
        if preprocessing.aligned is not None:
            left["aligned"] = preprocessing.aligned
    else:
        values = (
            f"samples as in training ({preprocessing.dtype}), as float32; normalisation is inside the graph"
        )
        left = {"shape": shape, "dtype": preprocessing.dtype}
    inside = {
        "normalisation": f"({noun_of(preprocessing, 'pixel', 'sample')} - mean) * scale",
        "mean": preprocessing.mean,
        "scale": preprocessing.scale,
    }
    if preprocessing.is_image:
        inside["not_raw_pixels"] = f"an image without a pixel above {DARKEST:g} gets an embedding of zeros"
    return {
        "plsc": __version__,
        "paddle": paddle.__version__,
        "embedding_size": embedding_size,
        "input": {"dtype": "float32", "shape": ["batch", *shape], "values": values},
        "output": {"dtype": "float32", "shape": ["batch", embedding_size], "length": 1},
        "preprocessing": left,
        "inside_the_graph": inside,
        "threshold": threshold,
        "threshold_of": threshold_of(preprocessing, flip),
        "flip": flip,
    }


def threshold_of(preprocessing: Any, flip: bool) -> str:
    """Say which embeddings a threshold is for."""
    return "image and mirror image, embeddings summed, length 1" if flip else noun_of(preprocessing)


def noun_of(preprocessing: Any, of_image: str = "image", other: str = "sample") -> str:
    return of_image if preprocessing.is_image else other
