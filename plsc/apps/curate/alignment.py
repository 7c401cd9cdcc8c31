"""Align a face by five landmarks: the eyes, the tip of the nose and the corners of the mouth go to fixed
places.

The similarity transform (rotation, scale, shift) whose squared error is least is Umeyama's (1991, IEEE Trans.
PAMI 13(4)). With points as complex numbers it is w = a z + b, and a and b are those of linear regression. Try
it:

    align(np.zeros((200, 200, 3), np.uint8), TEMPLATE + 40).shape
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from plsc.errors import UserError
from plsc.utils.ordinary import FEWEST, largest_ordinary

SIZE = 112
# ArcFace's places in a picture of 112 x 112, as (x, y): the eye on the picture's left, the one on its right,
# the nose, the corner of the mouth on the left, the one on the right. InsightFace's training sets and
# networks have them.
TEMPLATE = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]]
)
OFFSET = 0.1  # root mean square over the landmarks, as a share of the sides: aligned faces of LFW have 0.03, 99.5 % of them at most 0.06
_FARTHEST = 1_000_000  # pixels
_FLAT = 0.01  # landmarks whose spread across a line is below this share of that along it give no angle


def offset(landmarks: np.ndarray, width: int, height: int) -> float:
    """Compute the root mean square distance of landmarks [5, 2] from ArcFace's places, as a share of the
    picture's sides, which are in pixels."""
    places = landmarks / [width, height] - TEMPLATE / SIZE
    return float(np.sqrt(np.mean(np.sum(places**2, axis=1))))


def largest_aligned(offsets: Sequence[float]) -> float:
    """Return the largest offset of a face that is called aligned, in a set of aligned faces with these
    offsets."""
    return min(OFFSET, largest_ordinary(offsets)) if len(offsets) >= FEWEST else OFFSET


def align(picture: np.ndarray, landmarks: np.ndarray, size: int = SIZE) -> np.ndarray:
    """Warp a face to its place in a picture of `size` x `size`; what lies outside of the given one is black.

    picture: uint8 [H, W, C] or [H, W], channels in any order. landmarks: [5, 2], (x, y) in pixels in the
    order of TEMPLATE; (0, 0) is the centre of the first pixel. Of other sizes than 112 the template is
    multiplied by size / 112, as in InsightFace. UserError: see `similarity_transform`.
    """
    matrix = similarity_transform(landmarks, TEMPLATE * (size / SIZE))
    part, matrix = _around(picture, matrix, size)
    if not part.size:
        return np.zeros((size, size, *picture.shape[2:]), np.uint8)
    part, matrix = _shrink(part, matrix)
    aligned = cv2.warpAffine(part, matrix, (size, size), flags=cv2.INTER_LINEAR)
    return aligned.reshape(size, size, *picture.shape[2:])  # OpenCV drops the axis of a single channel


def similarity_transform(landmarks: np.ndarray, places: np.ndarray = TEMPLATE) -> np.ndarray:
    """Compute the matrix float64 [2, 3] of the similarity transform that takes landmarks to places, both [5,
    2].

    UserError: landmarks of another shape, not finite or beyond a million, on one line (or all at one place),
    or mirrored.
    """
    landmarks = np.asarray(landmarks, np.float64)
    if landmarks.shape != (5, 2):
        raise UserError(f"landmarks: must be five points (x, y), got numbers {[*landmarks.shape]}")
    if not (np.abs(landmarks) < _FARTHEST).all():
        raise UserError(
            f"landmarks: must be finite numbers below {_FARTHEST:,}; detect them again, or leave the picture out"
        )
    source, target = _complex(landmarks), _complex(places)
    z, w = source - source.mean(), target - target.mean()
    spread = np.vdot(z, z).real
    across = (spread - abs(z @ z)) / 2  # the smaller eigenvalue of the points' scatter matrix
    if spread < 1e-12 or across < _FLAT**2 * spread:
        raise UserError(
            "landmarks: lie on one line or at one place, so that they give no angle or scale; detect them again"
        )
    if abs(z @ w) > abs(np.vdot(z, w)):  # a mirror image would fit better
        raise UserError(
            "landmarks: left and right are exchanged; give the eye and the corner of the mouth on the picture's left first"
        )
    a = np.vdot(z, w) / spread
    b = target.mean() - a * source.mean()
    return np.array([[a.real, -a.imag, b.real], [a.imag, a.real, b.imag]])


def _complex(points: np.ndarray) -> np.ndarray:
    return points[:, 0] + 1j * points[:, 1]


def _around(picture: np.ndarray, matrix: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut out the part of a picture that the matrix takes into `size` x `size`, with a margin: the part,
    which may be empty, and its matrix.

    cv2.warpAffine refuses pictures with a side above 32,767.
    """
    back = cv2.invertAffineTransform(matrix)
    corners = np.array([[-1, -1], [size, -1], [-1, size], [size, size]]) @ back[:, :2].T + back[:, 2]
    sides = picture.shape[1::-1]
    left, top = low = np.clip(np.floor(corners.min(axis=0)).astype(int) - 1, 0, sides)
    right, bottom = np.clip(np.ceil(corners.max(axis=0)).astype(int) + 2, 0, sides)
    return picture[top:bottom, left:right], np.column_stack(
        [matrix[:, :2], matrix[:, 2] + matrix[:, :2] @ low]
    )


def _shrink(picture: np.ndarray, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shrink a picture that the matrix would shrink to less than half: linear interpolation would skip most
    of its pixels."""
    times = int(1 / np.hypot(*matrix[:, 0]))
    if times < 2:
        return picture, matrix
    height, width = picture.shape[:2]
    small = cv2.resize(
        picture, (max(1, width // times), max(1, height // times)), interpolation=cv2.INTER_AREA
    )
    scale = np.array([width / small.shape[1], height / small.shape[0]])
    # Pixel centres lie on whole numbers: x of the small picture is (x + 0.5) * scale - 0.5 of the large one.
    return small, np.column_stack([matrix[:, :2] * scale, matrix[:, 2] + matrix[:, :2] @ (scale / 2 - 0.5)])
