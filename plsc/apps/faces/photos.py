"""Read photos from cameras, phones and programs, and find the faces in them."""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import cv2
import numpy as np

from plsc.apps.faces.detector import Detector, Face
from plsc.data import MOST_PIXELS
from plsc.data.images import decode_pixels, read_file
from plsc.errors import CorruptImageError, UserError, escape

Picture = Any
"""A path, a file's bytes, an array uint8 [H, W, 3] in OpenCV's order BGR, or a Pillow image."""
# Maximum area of the second largest face, relative to the largest. Above it, it is unclear whom the photo
# shows.
_GROUP = 0.4


def as_pictures(value: Picture | Iterable[Picture]) -> list[Picture]:
    """Return a list of pictures. It contains the value itself if that is a single picture."""
    single = isinstance(value, (str, os.PathLike, bytes, np.ndarray)) or _is_of_pillow(value)
    return [value] if single or not isinstance(value, Iterable) else [*value]


def picture_name(picture: Picture) -> str:
    """Return a picture's name for messages: its path, or its attribute `name` or `filename`.

    The name may contain characters that need `escape`.
    """
    if isinstance(picture, (str, os.PathLike)):
        return os.fspath(picture)
    return getattr(picture, "name", "") or getattr(picture, "filename", "") or "the picture"


def read_photo(photo: Picture) -> np.ndarray:
    """Read a photo, and turn it by its EXIF orientation.

    Args:
        photo: a path, a file's bytes, an array or a Pillow image.

    Returns the pixels, uint8 [H, W, 3] in the order BGR.

    Raises UserError if the photo cannot be read or does not have 8 bits. Raises CorruptImageError if the file
    is not a picture, or has too many pixels.
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
            f"{type(photo).__name__}: is not a picture; give a path, a file's bytes, an array or a Pillow "
            "image"
        )
    return decode_pixels(data, False, lambda: name)


def _bgr(pixels: np.ndarray, name: str) -> np.ndarray:
    """Convert pixels, uint8 [H, W] or [H, W, C] with 1, 3 or 4 channels, to three channels in the order BGR.

    OpenCV's networks accept any channel count without an error. So UserError is raised here for other arrays,
    and CorruptImageError if there are too many pixels.
    """
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
    """Return a Pillow image's pixels in the order BGR, turned by its EXIF orientation."""
    from PIL import ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):  # convert would clip these at 255
        pixels = np.asarray(image)
        return (pixels >> 8).astype(np.uint8) if pixels.dtype.kind == "u" else pixels
    return np.asarray(image.convert("RGB"))[:, :, ::-1]


def find_faces(detector: Detector, photo: Picture, pixels: np.ndarray, every: bool = False) -> list[Face]:
    """Find the faces in a photo, largest first.

    Args:
        detector: finds the faces.
        photo: the photo, whose name messages contain.
        pixels: its pixels, uint8 [H, W, 3] in the order BGR.
        every: as for `Detector.find`.

    Raises UserError if there is no face.
    """
    faces = detector.find(pixels, every)
    if not faces:
        raise UserError(f"{escape(picture_name(photo))}: no face found")
    return faces


def second_share(faces: Sequence[Face]) -> float:
    """Return the second largest face's area relative to the largest face's. One face or none gives 0.0."""
    return faces[1].area / max(faces[0].area, 1) if len(faces) > 1 else 0.0


def refuse_group(photo: Picture, faces: Sequence[Face]) -> None:
    """Raise UserError if a photo's second largest face is nearly as large as its largest face."""
    if second_share(faces) > _GROUP:
        raise UserError(
            f"{escape(picture_name(photo))}: {several_faces(faces)}; cut out one person, or use the "
            "largest face with --groups (in Python groups=True)"
        )


def several_faces(faces: Sequence[Face]) -> str:
    """Describe two faces or more: their number, and the second largest face's share of the largest's area."""
    return f"{len(faces)} faces, the second has {100 * second_share(faces):.0f} % of the largest's area"
