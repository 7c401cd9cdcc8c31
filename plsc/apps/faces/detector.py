"""Detect faces with five landmarks each: `Detector().find(photo)`. OpenCV runs the network YuNet."""

from collections.abc import Iterable
from typing import NamedTuple

import cv2
import numpy as np

from plsc.apps.faces.parallel import Pool
from plsc.apps.faces.published import YUNET, path_of

LEAST_SCORE = 0.8
# YuNet finds faces with about 20 to 400 pixels. So a photo is first searched at a small size. If no face is
# found there, a larger size shows small faces, and a smaller size shows a face that fills the picture.
_SIDES, _SMALLEST = (640, 1280), 320
# Upside-down faces also get scores above 0.8, with an upright face's landmarks. So the largest face is
# searched again in all four turns, with its surroundings, at this size. On LFW, 400 upright and 369
# upside-down faces were found. The turn with the highest score was right for all.
_TURNED_SIDE, _SURROUNDINGS = 96, 2.0
_UPRIGHT = 0.925  # faces with a higher score are upright: none of 1,295 upside-down faces had more than 0.916
_WHOLE_TURNED_SIDE = 240  # size at which a photo without an upright face is turned
_UNCERTAIN = 0.5  # minimum score for comparing turns
_ANY_SIZE, _OVERLAP, _MOST = (320, 320), 0.3, 5000  # OpenCV's defaults
_TURNS = (None, cv2.ROTATE_90_COUNTERCLOCKWISE, cv2.ROTATE_180, cv2.ROTATE_90_CLOCKWISE)


class Face(NamedTuple):
    """A face in a photo. Points are (x, y) in the photo's pixels."""

    landmarks: np.ndarray
    """float64 [5, 2], in plsc.apps.faces.alignment.TEMPLATE's order."""
    box: tuple[int, int, int, int]
    """Left, top, width and height of the part inside the photo."""

    @property
    def area(self) -> int:
        """The box's area in pixels."""
        return self.box[2] * self.box[3]


class Detector:
    """A face detector. Threads may share one."""

    def __init__(self):
        path = str(path_of(YUNET))
        self._networks = Pool(
            lambda: cv2.FaceDetectorYN.create(path, "", _ANY_SIZE, _UNCERTAIN, _OVERLAP, _MOST)
        )

    def find(self, photo: np.ndarray) -> list[Face]:
        """Find the faces in a photo.

        The photo may be turned by quarters. All faces are found in the same turn: the turn in which the
        largest face has the highest score.

        Args:
            photo: pixels, uint8 [H, W, 3] in OpenCV's order BGR.

        Returns the faces, largest first.
        """
        rows, turn = self._find_at_sizes(photo, 0, _SIDES), 0
        if len(rows) and rows[0, 14] <= _UPRIGHT:
            best = self._best_turn(_surroundings(photo, rows[0]), _TURNED_SIDE)
            if best and len(turned := self._find_at_sizes(photo, best, _SIDES)):
                rows, turn = turned, best
        elif not len(rows) and (best := self._best_turn(photo, _WHOLE_TURNED_SIDE)) is not None:
            rows, turn = (
                self._find_at_sizes(photo, best, (*_SIDES, _SMALLEST) if best else (_SMALLEST,)),
                best,
            )
        return [_face(row, turn, photo) for row in rows]

    def _find_at_sizes(self, photo: np.ndarray, turn: int, sides: Iterable[int]) -> np.ndarray:
        """Find the faces in a turned photo, at the first size at which there are any.

        Args:
            photo: pixels, uint8 [H, W, 3].
            turn: quarter turns counterclockwise.
            sides: longest sides in pixels to which the photo is shrunk, in this order.

        Returns a row for each face, float64 [n, 15], largest first: left, top, width, height, five landmarks
        and score. The unit is the turned photo's pixel.
        """
        longest = max(photo.shape[:2])
        seen = 0.0
        for side in sides:
            scale = min(1.0, side / longest)
            if scale == seen:
                continue
            seen = scale
            rows = self._detect(_turned(_shrunk(photo, scale), turn))
            rows = rows[rows[:, 14] >= LEAST_SCORE]
            if len(rows):
                rows[:, :14] /= scale
                return rows[np.argsort(-rows[:, 2] * rows[:, 3], kind="stable")]
        return np.empty((0, 15))

    def _best_turn(self, photo: np.ndarray, side: int) -> int | None:
        """Find the turn in which a face has the highest score.

        Args:
            photo: pixels, uint8 [H, W, 3].
            side: longest side in pixels to which the photo is shrunk.

        Returns the quarter turns counterclockwise, or None if there is no face in any turn.
        """
        small = _shrunk(photo, min(1.0, side / max(photo.shape[:2])))
        scores = [self._detect(_turned(small, turn))[:, 14].max(initial=0) for turn in range(4)]
        return int(np.argmax(scores)) if any(scores) else None

    def _detect(self, photo: np.ndarray) -> np.ndarray:
        """Run YuNet on a photo uint8 [H, W, 3]. Return a row for each face, float64 [n, 15]."""
        with self._networks.one() as network:
            network.setInputSize(photo.shape[1::-1])
            found = network.detect(photo)[1]
        return np.empty((0, 15)) if found is None else found.astype(np.float64)


def _shrunk(photo: np.ndarray, scale: float) -> np.ndarray:
    """Shrink a photo uint8 [H, W, 3] by a factor. A factor from 1 up leaves it unchanged."""
    if scale >= 1:
        return photo
    height, width = photo.shape[:2]
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return cv2.resize(photo, size, interpolation=cv2.INTER_AREA)


def _turned(photo: np.ndarray, turn: int) -> np.ndarray:
    """Turn a photo uint8 [H, W, 3] by quarters counterclockwise."""
    return cv2.rotate(photo, _TURNS[turn]) if turn else photo


def _surroundings(photo: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Crop the square around a face. Pixels outside the photo are grey.

    Args:
        photo: pixels, uint8 [H, W, 3].
        row: the face, as a row from `_find_at_sizes`.
    """
    left, top, width, height = row[:4]
    side = max(width, height) * _SURROUNDINGS
    left, top = round(left + (width - side) / 2), round(top + (height - side) / 2)
    right, bottom = left + round(side), top + round(side)
    inside = photo[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
    below, beyond = bottom - photo.shape[0], right - photo.shape[1]
    border = [max(0, -top), max(0, below), max(0, -left), max(0, beyond)]
    return cv2.copyMakeBorder(inside, *border, cv2.BORDER_CONSTANT, value=(110, 110, 110))


def _face(row: np.ndarray, turn: int, photo: np.ndarray) -> Face:
    """Convert a row from `_find_at_sizes` to a face in the original photo's coordinates.

    Args:
        row: a face in the turned photo.
        turn: quarter turns counterclockwise.
        photo: the original photo, uint8 [H, W, 3].
    """
    height, width = photo.shape[:2]
    left, top, right, bottom = row[0], row[1], row[0] + row[2], row[1] + row[3]
    x, y = np.append(row[4:14].reshape(5, 2), [[left, top], [right, bottom]], axis=0).T
    x, y = ((x, y), (width - 1 - y, x), (width - 1 - x, height - 1 - y), (y, height - 1 - x))[turn]
    points = np.column_stack([x, y])
    corners = np.clip(np.rint(points[5:]), 0, [width, height]).astype(int)
    first, last = corners.min(0), corners.max(0)
    return Face(points[:5], (*first.tolist(), *(last - first).tolist()))
