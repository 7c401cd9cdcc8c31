"""Read what to predict a batch at a time: images in files, or pixels in an array."""

import os
from collections.abc import Callable, Iterable

import cv2
import numpy as np

from plsc.data.image_list import read_list
from plsc.data.images import read_sample
from plsc.errors import UserError
from plsc.utils.preprocessing import Preprocessing


def samples_to_predict(
    given: str | os.PathLike | Iterable[str] | np.ndarray, preprocessing: Preprocessing
) -> tuple[Callable[[int, int], np.ndarray], list[str]]:
    """Return a reader, (start, stop) -> samples [n, *shape] as the network was trained on, and their names.

    given: a list file, an image file, several image files, or pixels [n, *shape]. Raises MissingFileError,
    UserError.
    """
    if not isinstance(given, np.ndarray):
        names = _image_files(given)
        return (
            lambda start, stop: np.stack([read_sample(path, preprocessing) for path in names[start:stop]])
        ), names
    if given.dtype != np.uint8 or given.shape[1:] != preprocessing.shape:
        shape = ", ".join(map(str, preprocessing.shape))
        raise UserError(f"predict: pixels must be uint8 [n, {shape}], got {given.dtype} {list(given.shape)}")
    return (lambda start, stop: np.array(given[start:stop], order="C")), [*map(str, range(len(given)))]


def _image_files(given: str | os.PathLike | Iterable[str]) -> list[str]:
    """List the image files to predict: one, those of a list file, or several."""
    if not isinstance(given, (str, os.PathLike)):
        try:
            return [os.fsdecode(path) for path in given]
        except TypeError as error:
            raise UserError(
                f"predict: {error}; give paths, or pixels in one array uint8 [n, C, H, W]"
            ) from None
    path = os.fspath(given)
    if os.path.isdir(path):
        raise UserError(f"predict: {path} is a folder; name its images, or a list of them")
    # OpenCV complains on stderr about a file that is not there.
    if os.path.isfile(path) and cv2.haveImageReader(path):
        return [path]
    return [str(name) for name in read_list(path, labelled=False)[0]]
