"""Read photos as they come from cameras and telephones, and take the largest face of each."""

import os

import numpy as np

from plsc.apps.faces.alignment import SIZE, align
from plsc.apps.faces.detector import Detector
from plsc.data.images import decode_pixels, read_file
from plsc.errors import CorruptImageError, UserError, shown

_HEIC = (b"ftypheic", b"ftypheix", b"ftypmif1", b"ftyphevc")  # bytes 4 to 12


def read_photo(photo: str | os.PathLike | bytes) -> np.ndarray:
    """Read a photo, its path or its bytes, turned as its EXIF says: uint8 [H, W, 3], BGR.

    UserError: it cannot be read; CorruptImageError: it is no picture, or too large a one.
    """
    name = _name_of(photo)
    data = np.frombuffer(photo, np.uint8) if isinstance(photo, bytes) else read_file(name)
    if data[4:12].tobytes() in _HEIC:
        raise CorruptImageError(f"{shown(name)}: is HEIC, which cannot be read; save it as JPEG")
    return decode_pixels(data, False, lambda: name)


def largest_face(
    detector: Detector, photo: str | os.PathLike | bytes, pixels: np.ndarray, size: int = SIZE
) -> tuple[np.ndarray, int]:
    """Cut the largest face out of a photo's pixels, aligned: uint8 [size, size, 3], BGR; and count the faces.
    UserError, there is none."""
    faces = detector.find(pixels)
    if not faces:
        raise UserError(f"{shown(_name_of(photo))}: no face found")
    return align(pixels, faces[0], size), len(faces)


def _name_of(photo: str | os.PathLike | bytes) -> str:
    return "the picture" if isinstance(photo, bytes) else os.fspath(photo)
