"""Make a network's inputs as faults of another program make them: pixels in another order, not normalised,
cut, stretched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np

_IMAGENET = np.array([[123.675, 116.28, 103.53], [58.395, 57.12, 57.375]]).reshape(2, 3, 1, 1)

FaultyInput = tuple[str, np.ndarray]
"""(the cause and what happened, the input [n, *shape])"""


def faulty_inputs(preprocessing: Any, samples: np.ndarray) -> Iterator[FaultyInput]:
    """Yield what faults make of samples [n, *shape], float32 or float64."""
    if preprocessing.is_image:
        for fault, pixels in _faulty_images(samples):
            yield fault, preprocessing(pixels)
    elif samples.ndim > 2:
        turned = samples.transpose(0, *range(samples.ndim - 1, 0, -1)).reshape(samples.shape)
        yield "layout: the axes of a sample are in reverse order", preprocessing(turned)
    yield from _not_normalised(preprocessing, samples)


def _faulty_images(pixels: np.ndarray) -> Iterator[FaultyInput]:
    count, channels, height, width = pixels.shape
    if channels == 3:
        yield "colour order: red and blue are exchanged (BGR for RGB)", pixels[:, ::-1]
        grey = np.tensordot(pixels, [0.299, 0.587, 0.114], (1, 0))[:, np.newaxis]
        yield "colour lost: the pictures are grey", np.repeat(grey, 3, axis=1)
    if channels > 1:
        yield (
            "layout: [H, W, C] is read as [C, H, W]",
            pixels.transpose(0, 2, 3, 1).reshape(pixels.shape),
        )
        turned = pixels.reshape(count, height, width, channels).transpose(0, 3, 1, 2)
        yield "layout: [C, H, W] is read as [H, W, C]", turned
    yield "layout: rows and columns are exchanged", pixels.swapaxes(2, 3).reshape(pixels.shape)
    yield "crop: the middle 7/8 is enlarged to the whole", _middle(pixels, 7 / 8, 7 / 8)
    yield "crop: the middle 3/4 is enlarged to the whole", _middle(pixels, 3 / 4, 3 / 4)
    yield "resize: the height is stretched to 4/3", _middle(pixels, 3 / 4, 1)
    yield "resize: the width is stretched to 4/3", _middle(pixels, 1, 3 / 4)
    yield "resize: black borders are left and right, 1/8 each", _bordered(pixels, 1, 3 / 4)
    yield "resize: black borders are above and below, 1/8 each", _bordered(pixels, 3 / 4, 1)
    yield "resize: black borders are all around, 1/8 each", _bordered(pixels, 3 / 4, 3 / 4)
    small = _resized(pixels, height // 2, width // 2)
    yield "resize: the pictures were made smaller, to half, and larger again", _resized(small, height, width)
    yield "mirror: left and right are exchanged", pixels[..., ::-1]
    yield "upside down: the last row comes first", pixels[:, :, ::-1]
    yield "bytes: signed bytes are taken for unsigned ones, 128 off", (pixels + 128) % 256


def _not_normalised(preprocessing: Any, x: np.ndarray) -> Iterator[FaultyInput]:
    mean, scale = preprocessing.mean, preprocessing.scale
    if mean:
        yield "mean: it is not subtracted", x * scale
        yield "mean: it is subtracted twice", (x - 2 * mean) * scale
    if scale != 1:
        yield "scale: it is not multiplied by", x - mean
    if mean and scale != 1:
        yield "mean and scale: nothing is normalised", x
        yield "mean and scale: it is normalised twice", ((x - mean) * scale - mean) * scale
    if preprocessing.is_image:
        yield "scale: it is half of the right one", (x - mean) * (scale / 2)
        yield "scale: it is twice the right one", (x - mean) * (scale * 2)
        yield "mean and scale: pixels are divided by 255 alone", x / 255
        if x.shape[1] == 3:
            yield "mean and scale: they are those of ImageNet", (x - _IMAGENET[0]) / _IMAGENET[1]


def _resized(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize pictures [n, C, H, W] as a data set's are: by area to shrink, linearly to enlarge."""
    height, width = max(height, 1), max(width, 1)
    smaller = height * width < pixels.shape[2] * pixels.shape[3]
    how = cv2.INTER_AREA if smaller else cv2.INTER_LINEAR
    planes = pixels.astype(np.float32).reshape(-1, *pixels.shape[2:])
    planes = np.stack([cv2.resize(plane, (width, height), interpolation=how) for plane in planes])
    return planes.reshape(*pixels.shape[:2], height, width)


def _middle(pixels: np.ndarray, rows: float, columns: float) -> np.ndarray:
    """Enlarge the middle of pictures, of these shares of height and width, to the whole."""
    height, width = pixels.shape[2:]
    top, left = round(height * (1 - rows) / 2), round(width * (1 - columns) / 2)
    return _resized(pixels[:, :, top : height - top, left : width - left], height, width)


def _bordered(pixels: np.ndarray, rows: float, columns: float) -> np.ndarray:
    """Shrink pictures to these shares of height and width, in the middle of black."""
    height, width = pixels.shape[2:]
    top, left = round(height * (1 - rows) / 2), round(width * (1 - columns) / 2)
    bordered = np.zeros(pixels.shape, np.float32)
    bordered[:, :, top : height - top, left : width - left] = _resized(
        pixels, height - 2 * top, width - 2 * left
    )
    return bordered
