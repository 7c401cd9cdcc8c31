"""Read photos as they come from cameras and telephones, and take the largest face of each."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np

from plsc.apps.faces.alignment import SIZE, align
from plsc.apps.faces.detector import Detector
from plsc.data.images import decode_pixels, read_file
from plsc.errors import CorruptImageError, UserError, shown
from plsc.utils.bar import Bar

Given, Made = TypeVar("Given"), TypeVar("Made")
_PART = 256  # pictures that threads take together
NO_FACE = "no face found"
_HEIC = (b"ftypheic", b"ftypheix", b"ftypmif1", b"ftyphevc")  # bytes 4 to 12


class Portrait(NamedTuple):
    """The largest face of a photo, cut out."""

    pixels: np.ndarray
    """uint8 [size, size, 3], BGR."""
    side: int
    """Of the face in the photo, in pixels."""
    faces: int
    """How many the photo has."""


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


def largest_face(detector: Detector, photo: np.ndarray, size: int = SIZE) -> Portrait:
    """Cut the largest face out of a photo, aligned. UserError, NO_FACE: there is none."""
    found = detector.find(photo)
    if not found:
        raise UserError(NO_FACE)
    largest = found[0]
    return Portrait(align(photo, largest.landmarks, size), round(largest.side), len(found))


def in_threads(act: Callable[[Given], Made], pictures: Sequence[Given], what: str) -> Iterator[Made]:
    """Apply `act` to each picture by several threads, yield what it makes in order, and show how many of many
    are done."""
    many = len(pictures) > 2 * (os.cpu_count() or 1)
    with ThreadPoolExecutor() as pool, contextlib.ExitStack() as shown:
        bar = shown.enter_context(Bar(what, len(pictures), "pictures")) if many else None
        for start in range(0, len(pictures), _PART):
            for made in pool.map(act, pictures[start : start + _PART]):
                if bar:
                    bar.update()
                yield made
