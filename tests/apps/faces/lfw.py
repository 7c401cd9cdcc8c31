"""Photos with faces for tests: LFW's pictures, placed off-centre into scenes. Also the published networks."""

from __future__ import annotations

import functools
import tarfile
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.helpers.idx_files import DATA

ZOO = DATA / "opencv_zoo"
_LFW = DATA / "lfw_dev.tar"
needs_faces = pytest.mark.skipif(
    not ((ZOO / "face_recognition_sface_2021dec.onnx").is_file() and _LFW.is_file()),
    reason="needs opencv_zoo and lfw_dev.tar of the test data in $PLSC_TEST_DATA",
)


@functools.cache
def portraits(pictures: int, people: int) -> dict[str, list[np.ndarray]]:
    """Read the first people who have so many pictures, each uint8 [112, 112, 3], BGR."""
    found: dict[str, list[np.ndarray]] = {}
    name = ""
    with tarfile.open(_LFW) as tar:
        for member in tar:
            if not member.isfile() or not member.name.startswith("images/"):
                continue
            whose = member.name.split("/")[1]
            if whose != name:
                if len(found.get(name, ())) < pictures:
                    found.pop(name, None)
                if len(found) == people:
                    break
                name, found[whose] = whose, []
            if len(found[whose]) < pictures:
                data = np.frombuffer(tar.extractfile(member).read(), np.uint8)
                found[whose].append(cv2.imdecode(data, cv2.IMREAD_COLOR))
    return {name: photos for name, photos in found.items() if len(photos) == pictures}


def scene(faces: Sequence[np.ndarray], width: int = 480, height: int = 360, seed: int = 0) -> np.ndarray:
    """Put faces side by side into a plain scene, the first one larger than the others."""
    draw = np.random.default_rng(seed)
    picture = np.full((height, width, 3), draw.integers(60, 200, 3), np.uint8)
    left = int(draw.integers(5, 40)) if len(faces) < 4 else 0
    for number, face in enumerate(faces):
        side = 140 if number == 0 else 80
        top = int(draw.integers(5, height - side - 5))
        picture[top : top + side, left : left + side] = cv2.resize(face, (side, side))
        left += side + 2
    return picture


def write(path: Path, picture: np.ndarray) -> str:
    """Write a picture in the format of its name, and return the name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(path.suffix, picture)[1].tobytes())
    return str(path)
