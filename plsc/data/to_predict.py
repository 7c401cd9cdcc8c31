"""Read the images to predict, one batch at a time.

They are image files, folders, list files, PIL images, or pixels in an array. Try it:
`samples_to_predict("faces", Preprocessing((3, 112, 112)))`.
"""

import io
import os
from collections.abc import Callable, Iterable
from typing import Any

import cv2
import numpy as np

from plsc.data.folder import images_below, is_image
from plsc.data.image_list import UTF_16, read_list
from plsc.data.images import read_sample
from plsc.errors import MissingFileError, UserError, escape
from plsc.utils.files import open_regular
from plsc.utils.preprocessing import Preprocessing

_OTHER_COLOURS = ("CMYK", "YCbCr", "HSV")  # Pillow's modes that a PNG does not have


def samples_to_predict(
    given: str | os.PathLike | Iterable[Any] | np.ndarray, preprocessing: Preprocessing
) -> tuple[Callable[[int, int], np.ndarray], list[str], dict[int, str]]:
    """Return a function that reads samples, the samples' names, and why samples could not be read.

    The function takes (start, stop) and returns these samples, uint8 [n, *shape], prepared as in training. A
    sample that cannot be read is zero, and the function puts its number and the reason into the mapping.

    Args:
        given: a list file, an image file, a folder of images at any depth, a PIL image, several of these, or
            pixels uint8 [n, *shape], with the channels in the preprocessing's order.
        preprocessing: the preprocessing that the network was trained with.

    Raises MissingFileError or UserError.
    """
    if isinstance(given, np.ndarray):
        if given.dtype != np.uint8 or given.shape[1:] != preprocessing.shape:
            shape = ", ".join(map(str, preprocessing.shape))
            raise UserError(
                f"predict: pixels must be uint8 [n, C, H, W], here [n, {shape}] with the channels "
                f"{preprocessing.channels}, got {given.dtype} {list(given.shape)}; "
                "or give PIL images, which plsc converts"
            )
        names = [*map(str, range(len(given)))]
        return (lambda start, stop: np.array(given[start:stop], order="C")), names, {}
    if isinstance(given, (str, os.PathLike)) or _is_pil(given):
        given = _listed(given)
    if not isinstance(given, Iterable):
        raise UserError(
            f"predict: give paths, PIL images, or pixels in one array (got {escape(repr(given))})"
        )
    pictures = [picture for each in given for picture in _in_folder(each)]
    names = [str(number) if _is_pil(each) else each for number, each in enumerate(pictures)]

    unread: dict[int, str] = {}

    def read(start: int, stop: int) -> np.ndarray:
        samples = np.zeros((min(stop, len(pictures)) - start, *preprocessing.shape), np.uint8)
        for number, sample in enumerate(samples, start):
            try:
                sample[:] = _read(pictures[number], names[number], preprocessing)
            except UserError as error:
                unread[number] = str(error)
        return samples

    return read, names, unread


def _is_pil(picture: Any) -> bool:
    return hasattr(picture, "convert") and hasattr(picture, "save")


def _listed(given: Any) -> list[Any]:
    """Return a list with the argument itself, or the pictures that a list file names."""
    if _is_pil(given) or os.path.isdir(given):
        return [given]
    path = os.fsdecode(given)
    if not os.path.exists(path):
        raise MissingFileError(f"predict: '{escape(path)}' does not exist (looked in {os.getcwd()})")
    with open_regular(path) as file:
        start = file.read(4096)
    if start.startswith(b"\x93NUMPY"):
        raise UserError(
            f"predict: {escape(path)} is a NumPy array; give images, a folder, or a list of images. In "
            "Python, Entry.predict takes the array itself, uint8 [n, C, H, W], as numpy.load returns it"
        )
    is_text = start.startswith(UTF_16) or b"\0" not in start
    if is_image(path) or cv2.haveImageReader(path) or not is_text:
        return [path]
    paths, _, _ = read_list(path, labelled=False)
    return [*paths]


def _in_folder(picture: Any) -> list[Any]:
    """Return the images in a folder, at any depth, sorted by path, or a list with the picture itself."""
    if _is_pil(picture):
        return [picture]
    try:
        path = os.fsdecode(picture)
    except TypeError as error:
        raise UserError(
            f"predict: {error}; give paths, PIL images, or pixels in one array uint8 [n, C, H, W] with the "
            "network's size and order of channels"
        ) from None
    return images_below(path) if os.path.isdir(path) else [path]


def _read(picture: Any, name: str, preprocessing: Preprocessing) -> np.ndarray:
    if isinstance(picture, str):
        return read_sample(picture, preprocessing)
    from PIL import ImageOps

    file = io.BytesIO()
    try:
        # OpenCV turns a file by its EXIF orientation. A PNG from Pillow does not contain the orientation.
        picture = ImageOps.exif_transpose(picture)
        (picture.convert("RGB") if picture.mode in _OTHER_COLOURS else picture).save(file, "PNG")
    except (OSError, ValueError) as error:  # a damaged file, or a mode such as F
        raise UserError(f"predict: image {name}: {error}; convert it to RGB") from error
    return read_sample(np.frombuffer(file.getvalue(), np.uint8), preprocessing, lambda: f"image {name}")
