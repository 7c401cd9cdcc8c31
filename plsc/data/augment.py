"""Augment pictures in training, differently in each epoch, so that the network learns the class and not the
photograph.

OpenCV on uint8 [H, W, 3] (its order, BGR) or grey [H, W], tens of microseconds each; all colour is one 3x4
matrix, so that nothing is rounded twice. Try it: `Augment(crop=0.2, colour=0.4)(picture, generator(0))`.
"""

from dataclasses import dataclass

import cv2
import numpy as np

from plsc.data.transforms import resize

LUMA = (0.114, 0.587, 0.299)  # of B, G, R in grey (ITU-R BT.601, as OpenCV's)
LOW_RESOLUTION = 0.25  # the least share of the sides that is left
CUTOUT = (0.1, 0.45)  # least and greatest height and width of the rectangle, shares of the sides
PAINT = 127  # of the rectangle: about 0 for the network
# Random numbers a sample, drawn whether needed or not: one key does not change what another draws. Some are
# free.
_DRAWS = 18


@dataclass(frozen=True)
class Augment:
    """The strengths, which are the keys of plsc.data.images.EncodedImages; its docstring explains them. 0 is
    off."""

    flip: bool = False
    crop: float = 0.0
    colour: float = 0.0
    low_resolution: float = 0.0
    cutout: float = 0.0

    def __call__(self, picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Augment a picture, uint8 [H, W, 3] BGR or grey [H, W]; returns the argument itself where nothing is
        changed."""
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
            zoom = 1 - self.crop * zoomed  # the crop is this share of the sides, and lies within the picture
            rows, columns = max(1, round(zoom * height)), max(1, round(zoom * width))
            top, left = int(down * (height - rows + 1)), int(right * (width - columns + 1))
            picture = resize(picture[top : top + rows, left : left + columns], height, width)
        return cv2.flip(picture, 1) if self.flip and mirrored < 0.5 else picture


def recolour(
    picture: np.ndarray, brightness: float = 1.0, contrast: float = 1.0, saturation: float = 1.0
) -> np.ndarray:
    """Change brightness, contrast and saturation by factors: of all values, of their distance from the
    picture's mean, of their distance from grey; 1 changes nothing."""
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
    """Paint over a rectangle: Random Erasing (Zhong et al. 2020) in one grey."""
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
