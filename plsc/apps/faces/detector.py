"""Find faces and five landmarks of each by YuNet, which OpenCV runs: `Detector().find(photo)`."""

import threading
from typing import Any

import cv2
import numpy as np

from plsc.apps.faces.published import YUNET, path_of

LEAST_SCORE = 0.8
# Faces of some 20 to 400 pixels are found; so a photo is looked at in a small size, and in a larger one for
# small faces where that shows none.
_SIDES = (640, 1280)
_ANY_SIZE, _OVERLAP, _MOST = (320, 320), 0.3, 5000  # OpenCV's own values


class Detector:
    """Finds faces. Threads may share one: each has a network of its own."""

    def __init__(self):
        self._path = str(path_of(YUNET))
        self._here = threading.local()

    def find(self, photo: np.ndarray) -> list[np.ndarray]:
        """Find the faces of a photo, uint8 [H, W, 3] in OpenCV's order BGR, the largest first.

        Returns the landmarks of each: float64 [5, 2], (x, y) in the photo, in the order of
        plsc.apps.faces.alignment.TEMPLATE.
        """
        longest = max(photo.shape[:2])
        for side in _SIDES:
            faces = self._find(photo, min(1.0, side / longest))
            if faces or longest <= side:
                break
        return faces

    def _find(self, photo: np.ndarray, scale: float) -> list[np.ndarray]:
        if scale < 1:
            height, width = photo.shape[:2]
            size = max(1, round(width * scale)), max(1, round(height * scale))
            photo = cv2.resize(photo, size, interpolation=cv2.INTER_AREA)
        network = self._network()
        network.setInputSize(photo.shape[1::-1])
        found = network.detect(photo)[1]
        rows = np.empty((0, 15)) if found is None else found.astype(np.float64)
        # A row: left, top, width, height, five landmarks, score.
        largest_first = np.argsort(-rows[:, 2] * rows[:, 3], kind="stable")
        return [row[4:14].reshape(5, 2) / scale for row in rows[largest_first]]

    def _network(self) -> Any:
        if not hasattr(self._here, "network"):
            self._here.network = cv2.FaceDetectorYN.create(
                self._path, "", _ANY_SIZE, LEAST_SCORE, _OVERLAP, _MOST
            )
        return self._here.network
