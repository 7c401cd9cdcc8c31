"""Read photos as they come from cameras and telephones, and take the largest face of each."""

from __future__ import annotations

import os

import numpy as np

from plsc.apps.faces.alignment import SIZE, align
from plsc.apps.faces.detector import Detector, Face
from plsc.data.images import decode_pixels, read_file
from plsc.errors import CorruptImageError, UserError, shown

NO_FACE = "no face found"
_HEIC = (b"ftypheic", b"ftypheix", b"ftypmif1", b"ftyphevc")  # bytes 4 to 12


def read_photo(photo: str | os.PathLike | bytes) -> np.ndarray:
    """Read a photo, its path or its bytes, turned as its EXIF says: uint8 [H, W, 3], BGR.

    UserError: it cannot be read; CorruptImageError: it is no picture, or too large a one.
    """
    if isinstance(photo, bytes):
        name, data = "the picture", np.frombuffer(photo, np.uint8)
    else:
        name = os.fspath(photo)
        data = read_file(name)
    if data[4:12].tobytes() in _HEIC:
        raise CorruptImageError(f"{shown(name)}: is HEIC, which cannot be read; save it as JPEG")
    return decode_pixels(data, False, lambda: name)


def largest_face(detector: Detector, photo: np.ndarray, size: int = SIZE) -> tuple[np.ndarray, list[Face]]:
    """Cut the largest face out of a photo, aligned: uint8 [size, size, 3], BGR; return all faces, too, the
    largest first. UserError, NO_FACE: there is none."""
    faces = detector.find(photo)
    if not faces:
        raise UserError(NO_FACE)
    return align(photo, faces[0].landmarks, size), faces
