"""Transform a picture between its source and the batch, with reproducible random numbers.

Every random choice comes from `generator(seed, epoch, index)`. A sample therefore depends neither on the
process that makes it nor on the samples before it. The batches do not depend on how many processes make them,
and a resumed run continues exactly. Try it: `generator(seed=0, epoch=1, index=7).random(3)`.
"""

import math

import cv2
import numpy as np

cv2.setNumThreads(1)  # the loader's own threads and processes work on separate pictures

# The uses of a stream of `generator`. Each use has its own streams. `draw_classes` (heads/sampling.py)
# addresses its numbers in the same way: its block b in step e has the numbers of use b, epoch e and index 0
# here. Neither is changed, because a change would change every run.
SAMPLES, ORDER, PAIRS, PROTOTYPES, SUBSTITUTES, PROBES = range(6)


def generator(seed: int, epoch: int = 0, index: int = 0, use: int = SAMPLES) -> np.random.Generator:
    """Make one sample's random stream.

    Philox is a counter-based generator (Salmon et al., SC 2011). Its key and the upper half of its counter
    directly select a stream with 2^128 numbers. This takes 7 us. Hashing a SeedSequence takes 16 us. A
    Generator's methods may return other numbers in another version of numpy (NEP 19). The same bits
    therefore need the same version.

    Args:
        seed: the run's seed.
        epoch: epoch number.
        index: the sample's index.
        use: the stream's use, one of the constants above.
    """
    key, counter = np.array([seed, use], np.uint64), np.array([0, 0, index, epoch], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def distort(ink: np.ndarray, size: int, strength: float, rng: np.random.Generator) -> np.ndarray:
    """Render a camera's view of a drawing: dark on light, uint8 [size, size].

    At strength 1, the ranges are: rotation up to 12 degrees, each axis 0.86 to 1.16 times as long, shear up
    to 0.15, shift up to 6 % per side, Gaussian blur up to 3 % per side, paper 255 down to 175, ink 0 up
    to 80, and Gaussian noise up to 18 grey levels.

    Args:
        ink: the drawing, uint8 [M, M], 255 = ink.
        size: the picture's side in pixels.
        strength: factor on all ranges. 0 gives the clean picture, black on white.
        rng: the random numbers.
    """
    angle, shear, grow_x, grow_y, right, down = (strength * (2 * rng.random(6) - 1)).tolist()
    blur, paper, black, noise = (strength * rng.random(4)).tolist()
    cos, sin = math.cos(0.21 * angle), math.sin(0.21 * angle)
    zoom = size / len(ink)
    x, y = zoom * 2 ** (0.22 * grow_x), zoom * 2 ** (0.22 * grow_y)
    a = x * cos
    b = y * (0.15 * shear * cos - sin)
    c = x * sin
    d = y * (0.15 * shear * sin + cos)
    middle = (len(ink) - 1) / 2  # pixel centres lie on integers
    to_x, to_y = ((size - 1) / 2 + 0.06 * size * shift for shift in (right, down))
    matrix = np.array([[a, b, to_x - (a + b) * middle], [c, d, to_y - (c + d) * middle]])
    picture = cv2.warpAffine(ink, matrix, (size, size), flags=cv2.INTER_LINEAR)
    sigma = 0.03 * size * blur
    if sigma > 0.25:  # below this, the neighbouring pixels would get a weight below 1/1000
        width = 2 * math.ceil(2 * sigma) + 1
        picture = cv2.GaussianBlur(picture, (width, width), sigma)
    paper, black = 255 - 80 * paper, 80 * black
    grain = rng.standard_normal((size, size), dtype=np.float32)
    # paper + coverage * (black - paper) + noise in one pass, which OpenCV rounds and saturates.
    coverage = picture.astype(np.float32)
    return cv2.addWeighted(coverage, (black - paper) / 255, grain, 18 * noise, paper, dtype=cv2.CV_8U)


def resize(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize a picture, uint8 [h, w(, C)], to [height, width(, C)].

    Shrinking averages over areas. Enlarging interpolates linearly.
    """
    if picture.shape[:2] == (height, width):
        return picture
    shrinks = picture.shape[0] > height or picture.shape[1] > width
    return cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)
