"""Augment pictures in training, differently in each epoch, so that the network learns the class and not the
photograph.

OpenCV on uint8 [H, W, 3] (its order, BGR) or grey [H, W], tens of microseconds each; all geometry is one
warp, all colour one 3x4 matrix, so that nothing is rounded twice. docs/training.md shows them.
To see one:

    python -c "import cv2; from plsc.data.augment import Augment; from plsc.data.transforms import generator; \
    cv2.imwrite('new.png', Augment(crop=0.2, colour=0.4)(cv2.imread('old.png'), generator(0)))"
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np

from plsc.data.transforms import resize
from plsc.errors import UserError

LUMA = (0.114, 0.587, 0.299)  # of B, G, R in grey (ITU-R BT.601, as OpenCV's)
BLUR = (0.004, 0.02)  # least and greatest sigma, shares of the shorter side
LOW_RESOLUTION = 0.25  # the least share of the sides that is left
CUTOUT = (0.1, 0.45)  # least and greatest height and width of the rectangle, shares of the sides
PAINT = 127  # of the rectangle: about 0 for the network
# Random numbers a sample, drawn whether needed or not: one key does not change what another draws.
_DRAWS = 18


@dataclass(frozen=True)
class Augment:
    """The strengths, which are the keys of plsc.data.images.EncodedImages; its docstring explains them. 0 is
    off."""

    flip: bool = False
    crop: float = 0.0
    rotate: float = 0.0
    colour: float = 0.0
    grey: float = 0.0
    blur: float = 0.0
    low_resolution: float = 0.0
    cutout: float = 0.0
    randaugment: int = 0

    @staticmethod
    def check(**kwargs) -> None:
        """Raise UserError for a strength out of its range; other arguments are ignored."""
        for key in ("crop", "colour", "grey", "blur", "low_resolution", "cutout"):
            if not 0 <= kwargs.get(key, 0) <= 1 or kwargs.get(key) == 1 and key == "crop":
                raise UserError(
                    f"{key}: must be from 0 to {'below ' if key == 'crop' else ''}1, got {kwargs[key]}"
                )
        if not 0 <= kwargs.get("rotate", 0) <= 180:
            raise UserError(f"rotate: must be from 0 to 180 degrees, got {kwargs['rotate']}")
        if not 0 <= kwargs.get("randaugment", 0) <= 100:
            raise UserError(f"randaugment: must be from 0 to 100, got {kwargs['randaugment']}")
        if kwargs.get("channels") == "grey" and kwargs.get("grey", 0) > 0:
            raise UserError(f"grey: has no meaning with channels grey, leave it out (got {kwargs['grey']})")

    def __call__(self, picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Augment a picture, uint8 [H, W, 3] BGR or grey [H, W]; returns the argument itself where nothing is
        changed."""
        draws = rng.random(_DRAWS).tolist()
        warps, retouches = self._operations(rng, picture.ndim == 2)
        picture = self._moved(picture, *draws[:5], warps)
        if draws[5] < self.low_resolution:
            picture = _coarse(picture, draws[6])
        if draws[7] < self.blur:
            picture = _blurred(picture, draws[8])
        brightness, contrast, saturation = (1 + self.colour * (2 * draw - 1) for draw in draws[9:12])
        drained = draws[12] < self.grey
        if self.colour or drained:
            picture = recolour(picture, brightness, contrast, 0.0 if drained else saturation)
        for operation, level in retouches:
            picture = operation(picture, level)
        if draws[13] < self.cutout:
            picture = _cut_out(picture, *draws[14:])
        return picture

    def _operations(self, rng: np.random.Generator, grey: bool) -> tuple[list, list]:
        """Draw RandAugment's operations (with replacement, as Cubuk et al. 2020): (operation, level in [-1,
        1]) that move pixels, and those that change them."""
        if not self.randaugment:
            return [], []
        operations = [*WARPS, *(name for name in RETOUCHES if not (grey and name == "saturation"))]
        names = [operations[number] for number in rng.integers(len(operations), size=self.randaugment)]
        drawn = list(zip(names, (2 * rng.random(self.randaugment) - 1).tolist()))
        return (
            [(WARPS[name], level) for name, level in drawn if name in WARPS],
            [(RETOUCHES[name], level) for name, level in drawn if name in RETOUCHES],
        )

    def _moved(
        self,
        picture: np.ndarray,
        mirrored: float,
        zoomed: float,
        right: float,
        down: float,
        turned: float,
        warps: list,
    ) -> np.ndarray:
        """Flip, crop, rotate and apply RandAugment's geometry in one interpolation."""
        flips = self.flip and mirrored < 0.5
        height, width = picture.shape[:2]
        zoom = 1 - self.crop * zoomed  # the crop is this share of the sides, and lies within the picture
        if not (self.rotate or warps):  # whole pixels then, because it takes a quarter of the time
            if self.crop:
                rows, columns = max(1, round(zoom * height)), max(1, round(zoom * width))
                top, left = int(down * (height - rows + 1)), int(right * (width - columns + 1))
                picture = resize(picture[top : top + rows, left : left + columns], height, width)
            return cv2.flip(picture, 1) if flips else picture
        x, y = (1 - zoom) * (right - 0.5) * width, (1 - zoom) * (down - 0.5) * height
        matrix = _turned(math.radians(self.rotate) * (2 * turned - 1))[:, :2] * zoom
        matrix[:, 0] *= -1 if flips else 1
        for operation, level in warps:
            step = operation(level)
            matrix = step[:, :2] @ matrix
            x, y = x + step[0, 2] * width, y + step[1, 2] * height
        middle = np.array([(width - 1) / 2, (height - 1) / 2])  # pixel centres lie on integers
        to = middle + (x, y) - matrix @ middle
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        affine = np.column_stack([matrix, to])
        return cv2.warpAffine(
            picture, affine, (width, height), flags=flags, borderMode=cv2.BORDER_REFLECT_101
        )


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


def _blurred(picture: np.ndarray, share: float) -> np.ndarray:
    least, greatest = BLUR
    sigma = (least + (greatest - least) * share) * min(picture.shape[:2])
    side = 2 * math.ceil(2 * sigma) + 1
    return cv2.GaussianBlur(picture, (side, side), sigma)


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


def _turned(angle: float) -> np.ndarray:
    cos, sin = math.cos(angle), math.sin(angle)
    return np.array([[cos, -sin, 0.0], [sin, cos, 0.0]])


def _sheared(x: float, y: float) -> np.ndarray:
    return np.array([[1.0, x, 0.0], [y, 1.0, 0.0]])


def _shifted(x: float, y: float) -> np.ndarray:
    return np.array([[1.0, 0.0, x], [0.0, 1.0, y]])


def _sharpened(picture: np.ndarray, level: float) -> np.ndarray:
    return cv2.addWeighted(picture, 1 + level, cv2.blur(picture, (3, 3)), -level, 0)


def _gamma(picture: np.ndarray, level: float) -> np.ndarray:
    values = 255 * (np.arange(256) / 255) ** (2.0**level)
    return cv2.LUT(picture, np.rint(values).astype(np.uint8))


def _stretched(picture: np.ndarray) -> np.ndarray:
    return cv2.normalize(picture, None, 0, 255, cv2.NORM_MINMAX)


def _posterized(picture: np.ndarray, level: float) -> np.ndarray:
    return picture & np.uint8(256 - 2 ** round(4 * abs(level)))


# RandAugment's operations at level -1 to 1; the numbers are the strengths at 1. What turns a face or a
# product into another one (solarize, invert, large shifts) is left out. WARPS give the 2x3 matrix from new to
# old places, shifts in sides.
WARPS: dict[str, Callable[[float], np.ndarray]] = {
    "rotate": lambda level: _turned(math.radians(15 * level)),
    "shear_x": lambda level: _sheared(0.15 * level, 0),
    "shear_y": lambda level: _sheared(0, 0.15 * level),
    "shift_x": lambda level: _shifted(0.08 * level, 0),
    "shift_y": lambda level: _shifted(0, 0.08 * level),
}
RETOUCHES: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "brightness": lambda picture, level: recolour(picture, brightness=1 + 0.4 * level),
    "contrast": lambda picture, level: recolour(picture, contrast=1 + 0.5 * level),
    "saturation": lambda picture, level: recolour(picture, saturation=1 + 0.7 * level),
    "sharpness": _sharpened,
    "gamma": lambda picture, level: _gamma(picture, 0.7 * level),
    "autocontrast": lambda picture, level: _stretched(picture),
    "posterize": _posterized,
}
