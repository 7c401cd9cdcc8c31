"""Detect faces with five landmarks each: `Detector().find(photo)`. OpenCV runs the network YuNet."""

from typing import NamedTuple

import cv2
import numpy as np

from plsc.apps.faces.networks import YUNET
from plsc.utils.parallel import Pool
from plsc.utils.published import path_of

LEAST_SCORE = 0.8
# YuNet finds faces of about 20 to 400 pixels. So a photo is searched at a small size first, and at a larger
# one if it has no face, or only faces that are small at the first size. On LFW, landmarks of large faces are
# as good at 320 as at 640: the median cosine with the aligned original is 0.96 for both.
_SIDES = (320, 640, 1280)
_LARGE = 64  # minimum side in pixels of a face for which the first size is enough
# Upside-down faces also get scores above 0.8, with the landmarks of an upright face. So the largest face is
# searched again in all four turns, with its surroundings, at this size. On LFW, 400 upright and 369
# upside-down faces were found. The turn with the highest score was right for all.
_TURNED_SIDE, _SURROUNDINGS = 96, 2.0
_UPRIGHT = 0.925  # faces with a higher score are upright: none of 2,353 upside-down faces had more than 0.921
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

    def find(self, photo: np.ndarray, every: bool = False) -> list[Face]:
        """Find the faces in a photo.

        The photo may be turned by quarters. All faces are found in the same turn: the turn in which the
        largest face has the highest score.

        Args:
            photo: pixels, uint8 [H, W, 3] in OpenCV's order BGR.
            every: whether to find also faces that are much smaller than the largest one. This takes longer.
                It does not change the other faces.

        Returns the faces, largest first.
        """
        rows, turn = self._find_at_sizes(photo, 0), 0
        best = 0
        if not len(rows):
            best = self._best_turn(photo, _WHOLE_TURNED_SIDE)
        elif rows[0, 14] <= _UPRIGHT:
            best = self._best_turn(_surroundings(photo, rows[0]), _TURNED_SIDE)
        if best and len(turned := self._find_at_sizes(photo, best)):
            rows, turn = turned, best
        if every and len(rows):
            more = self._find_at_size(photo, turn, _SIDES[1])
            rows = np.vstack([rows, *(row for row in more if not _is_inside(row, rows))])
        return [_face(row, turn, photo) for row in rows]

    def _find_at_sizes(self, photo: np.ndarray, turn: int) -> np.ndarray:
        """Find faces in a turned photo at the first size that is enough. Return `_find_at_size`'s rows."""
        longest, rows = max(photo.shape[:2]), np.empty((0, 15))
        for side in _SIDES:
            found = self._find_at_size(photo, turn, side)
            if len(found):
                rows = found
            enough = _LARGE * longest / side if side == _SIDES[0] else 0
            if longest <= side or (len(found) and found[0, 2:4].max() >= enough):
                break
        return rows

    def _find_at_size(self, photo: np.ndarray, turn: int, side: int) -> np.ndarray:
        """Find the faces in a turned photo whose longest side is shrunk to `side` pixels.

        Returns a row for each face, float64 [n, 15], largest first: left, top, width, height, five landmarks
        and score. The unit is the turned photo's pixel.
        """
        scale = min(1.0, side / max(photo.shape[:2]))
        rows = self._detect(_turned(_shrunk(photo, scale), turn))
        rows = rows[rows[:, 14] >= LEAST_SCORE]
        rows[:, :14] /= scale
        return rows[np.argsort(-rows[:, 2] * rows[:, 3], kind="stable")]

    def _best_turn(self, photo: np.ndarray, side: int) -> int:
        """Find the turn in which a face has the highest score.

        Args:
            photo: pixels, uint8 [H, W, 3].
            side: longest side in pixels to which the photo is shrunk.

        Returns the number of quarter turns counterclockwise. Returns 0 if there is no face in any turn.
        """
        small = _shrunk(photo, min(1.0, side / max(photo.shape[:2])))
        scores = [self._detect(_turned(small, turn))[:, 14].max(initial=0) for turn in range(4)]
        return int(np.argmax(scores))

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


def _is_inside(row: np.ndarray, others: np.ndarray) -> bool:
    """Return whether the centre of a face lies in the box of another one. The rows are `_find_at_size`'s."""
    inside = np.abs(row[:2] + row[2:4] / 2 - others[:, :2] - others[:, 2:4] / 2) < others[:, 2:4] / 2
    return bool(inside.all(axis=1).any())


def _surroundings(photo: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Crop the square around a face, a row of `_find_at_size`. Pixels outside the photo are grey."""
    left, top, width, height = row[:4]
    side = max(width, height) * _SURROUNDINGS
    left, top = round(left + (width - side) / 2), round(top + (height - side) / 2)
    right, bottom = left + round(side), top + round(side)
    inside = photo[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
    below, beyond = bottom - photo.shape[0], right - photo.shape[1]
    border = [max(0, -top), max(0, below), max(0, -left), max(0, beyond)]
    return cv2.copyMakeBorder(inside, *border, cv2.BORDER_CONSTANT, value=(110, 110, 110))


def _face(row: np.ndarray, turn: int, photo: np.ndarray) -> Face:
    """Convert a row of `_find_at_size`, found in a turned photo, to a face in the photo before the turn."""
    height, width = photo.shape[:2]
    left, top, right, bottom = row[0], row[1], row[0] + row[2], row[1] + row[3]
    x, y = np.append(row[4:14].reshape(5, 2), [[left, top], [right, bottom]], axis=0).T
    x, y = ((x, y), (width - 1 - y, x), (width - 1 - x, height - 1 - y), (y, height - 1 - x))[turn]
    points = np.column_stack([x, y])
    corners = np.clip(np.rint(points[5:]), 0, [width, height]).astype(int)
    first, last = corners.min(0), corners.max(0)
    return Face(points[:5], (*first.tolist(), *(last - first).tolist()))
