"""Augment pictures in training.

A picture changes in each epoch, so that the network learns the class and not the photograph. OpenCV computes
the changes on uint8 [H, W, 3] (in its order BGR) or grey [H, W]. Each change takes tens of microseconds. All
colour changes form one 3x4 matrix, so that values are rounded only once. Try it:
`Augment(crop=0.2, colour=0.4)(picture, generator(0))`.
"""

from dataclasses import dataclass

import cv2
import numpy as np

from plsc.data.transforms import resize

LUMA = (0.114, 0.587, 0.299)  # weights of B, G, R in grey (ITU-R BT.601, as in OpenCV)
LOW_RESOLUTION = 0.25  # smallest factor by which a picture's sides shrink
CUTOUT = (0.1, 0.45)  # smallest and largest height and width of the rectangle, as shares of the sides
PAINT = 127  # value of the rectangle's pixels, about 0 for the network
# Random numbers per sample. All are always drawn, so that one key does not change another key's numbers. Some
# are unused.
_DRAWS = 18


@dataclass(frozen=True)
class Augment:
    """Augments pictures with the strengths that are its attributes.

    They are keys of plsc.data.images.EncodedImages, whose docstring explains them. 0 turns a change off.
    """

    flip: bool = False
    crop: float = 0.0
    colour: float = 0.0
    low_resolution: float = 0.0
    cutout: float = 0.0

    def __call__(self, picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Augment a picture, uint8 [H, W, 3] BGR or grey [H, W].

        Returns `picture` itself if nothing changes.
        """
        draws = rng.random(_DRAWS).tolist()
        picture = self._moved(picture, *draws[:4])
        if draws[5] < self.low_resolution:
            picture = _coarse(picture, draws[6])
        if self.colour:
            picture = recolour(picture, *(1 + self.colour * (2 * draw - 1) for draw in draws[9:12]))
        if draws[13] < self.cutout:
            picture = _cut_out(picture, *draws[14:])
        return picture

    def _moved(
        self, picture: np.ndarray, mirrored: float, zoomed: float, right: float, down: float
    ) -> np.ndarray:
        """Crop to whole pixels, resize back, and flip."""
        height, width = picture.shape[:2]
        if self.crop:
            zoom = 1 - self.crop * zoomed  # remaining share per side
            rows, columns = max(1, round(zoom * height)), max(1, round(zoom * width))
            top, left = int(down * (height - rows + 1)), int(right * (width - columns + 1))
            picture = resize(picture[top : top + rows, left : left + columns], height, width)
        return cv2.flip(picture, 1) if self.flip and mirrored < 0.5 else picture


def recolour(
    picture: np.ndarray, brightness: float = 1.0, contrast: float = 1.0, saturation: float = 1.0
) -> np.ndarray:
    """Change brightness, contrast and saturation of a picture, uint8 [H, W, 3] BGR or grey [H, W].

    A factor of 1 changes nothing.

    Args:
        picture: the picture.
        brightness: factor on all values.
        contrast: factor on the values' distance from the picture's mean.
        saturation: factor on the values' distance from grey. A grey picture ignores it.
    """
    factor = brightness * contrast
    if picture.ndim == 2:
        offset = brightness * (1 - contrast) * cv2.mean(picture)[0]
        return cv2.transform(picture, np.array([[factor, offset]]))
    luma = np.array(LUMA)
    matrix = np.empty((3, 4))
    matrix[:, :3] = factor * (saturation * np.eye(3) + (1 - saturation) * luma)
    matrix[:, 3] = brightness * (1 - contrast) * (luma @ cv2.mean(picture)[:3])
    return cv2.transform(picture, matrix)


def _coarse(picture: np.ndarray, share: float) -> np.ndarray:
    height, width = picture.shape[:2]
    left = LOW_RESOLUTION + (1 - LOW_RESOLUTION) * share
    small = resize(picture, max(1, round(left * height)), max(1, round(left * width)))
    return resize(small, height, width)


def _cut_out(picture: np.ndarray, tall: float, wide: float, down: float, right: float) -> np.ndarray:
    """Paint over a rectangle, as Random Erasing does (Zhong et al. 2020), with one grey value."""
    least, greatest = CUTOUT
    height, width = picture.shape[:2]
    rows, columns = (
        max(1, round((least + (greatest - least) * share) * side))
        for share, side in ((tall, height), (wide, width))
    )
    top, left = int(down * (height - rows + 1)), int(right * (width - columns + 1))
    picture = picture.copy()
    picture[top : top + rows, left : left + columns] = PAINT
    return picture
