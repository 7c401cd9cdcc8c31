"""Read photos as they come from cameras, telephones and programs, and cut the faces out."""

import os
import sys
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

from plsc.apps.faces.detector import Detector, Face
from plsc.data import MOST_PIXELS
from plsc.data.images import decode_pixels, read_file
from plsc.errors import CorruptImageError, UserError, escape

Picture = Any
"""A path, the bytes of a file, an array uint8 [H, W, 3] in OpenCV's order BGR, or an image of Pillow."""
# Of the second largest face, as a share of the largest: above, nobody can tell whose photo it is.
_GROUP = 0.4
_HEIC = (b"ftypheic", b"ftypheix", b"ftypmif1", b"ftyphevc")  # bytes 4 to 12


def as_pictures(value: Picture | Sequence[Picture]) -> Sequence[Picture]:
    """Return a list of the picture if the value is a single one, else the value."""
    single = isinstance(value, (str, os.PathLike, bytes, np.ndarray)) or _is_of_pillow(value)
    return [value] if single else value


def picture_name(picture: Picture) -> str:
    """Return what messages call a picture: its path, or its attribute `name` or `filename`. It may need
    `escape`."""
    if isinstance(picture, (str, os.PathLike)):
        return os.fspath(picture)
    return getattr(picture, "name", "") or getattr(picture, "filename", "") or "the picture"


def read_photo(photo: Picture) -> np.ndarray:
    """Read a photo, turned as its EXIF says: uint8 [H, W, 3], BGR.

    UserError: it cannot be read, or is no picture of 8 bits; CorruptImageError: its file is no picture, or
    too large a one.
    """
    name = picture_name(photo)
    if isinstance(photo, (str, os.PathLike)):
        data = read_file(os.fspath(photo))
    elif isinstance(photo, bytes):
        data = np.frombuffer(photo, np.uint8)
    elif isinstance(photo, np.ndarray):
        return _bgr(photo, name)
    elif _is_of_pillow(photo):
        return _bgr(_pixels_of_pillow(photo), name)
    else:
        raise UserError(
            f"{type(photo).__name__}: is no picture; give a path, the bytes of a file, an array, or an image "
            "of Pillow"
        )
    if data[4:12].tobytes() in _HEIC:
        raise CorruptImageError(f"{escape(name)}: is HEIC, which cannot be read; save it as JPEG")
    return decode_pixels(data, False, lambda: name)


def _bgr(pixels: np.ndarray, name: str) -> np.ndarray:
    """Give pixels from a program three channels: OpenCV's networks take any number without an error."""
    kinds = {(2, 1): cv2.COLOR_GRAY2BGR, (3, 1): cv2.COLOR_GRAY2BGR, (3, 3): None, (3, 4): cv2.COLOR_BGRA2BGR}
    kind = pixels.ndim, pixels.shape[2] if pixels.ndim == 3 else 1
    if pixels.dtype != np.uint8 or kind not in kinds or not pixels.size:
        raise UserError(
            f"{escape(name)}: is {pixels.dtype} {[*pixels.shape]}; an array must be uint8 [H, W, 3], in the "
            "order BGR"
        )
    if pixels.shape[0] * pixels.shape[1] > MOST_PIXELS:
        raise CorruptImageError(f"{escape(name)}: has more than {MOST_PIXELS:,} pixels")
    pixels = np.ascontiguousarray(pixels)
    return pixels if kinds[kind] is None else cv2.cvtColor(pixels, kinds[kind])


def _is_of_pillow(value: Any) -> bool:
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def _pixels_of_pillow(image: Any) -> np.ndarray:
    """Return the pixels of an image of Pillow in the order BGR, turned as its EXIF says."""
    from PIL import ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):  # convert would cut 16 bits off at 255
        pixels = np.asarray(image)
        return (pixels >> 8).astype(np.uint8) if pixels.dtype.kind == "u" else pixels
    return np.asarray(image.convert("RGB"))[:, :, ::-1]


def find_faces(detector: Detector, photo: Picture, pixels: np.ndarray) -> list[Face]:
    """Find the faces in a photo's pixels, the largest first. UserError: there is none."""
    faces = detector.find(pixels)
    if not faces:
        raise UserError(f"{escape(picture_name(photo))}: no face found")
    return faces


def second_share(faces: Sequence[Face]) -> float:
    """Return the area of the second largest face as a share of the largest's; 0.0: there is one face."""
    return faces[1].area / max(faces[0].area, 1) if len(faces) > 1 else 0.0


def refuse_group(photo: Picture, faces: Sequence[Face]) -> None:
    """Refuse by UserError a photo whose second face is nearly as large as the largest."""
    if second_share(faces) > _GROUP:
        raise UserError(
            f"{escape(picture_name(photo))}: {several_faces(faces)}; cut one person out of the photo, or "
            "take the largest face by --groups"
        )


def several_faces(faces: Sequence[Face]) -> str:
    """Describe the faces of a photo: their count and the share of the second largest; "": there is one."""
    if len(faces) < 2:
        return ""
    return f"{len(faces)} faces, the second has {100 * second_share(faces):.0f} % of the largest's area"
