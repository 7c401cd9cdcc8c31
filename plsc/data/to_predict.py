"""Read what to predict a batch at a time: images in files, or samples of any kind in an array or .npy
file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import cv2
import numpy as np

from plsc.data.arrays import open_npy
from plsc.data.image_list import read_list
from plsc.data.images import CHANNELS, read_sample
from plsc.data.preprocessing import Preprocessing
from plsc.errors import UserError, shown

Read = Callable[[int, int], np.ndarray]


def samples_to_predict(
    given: str | os.PathLike | Iterable[str] | np.ndarray, preprocessing: Preprocessing
) -> tuple[Read, list[str]]:
    """Return a reader, (start, stop) -> samples [n, *shape] as the network was trained on, and their names.

    given: a list file, an image file, several image files, an .npy file, or samples [n, *shape]. Raises
    MissingFileError, UserError.
    """
    if isinstance(given, np.ndarray):
        return _from_array(given, preprocessing, "predict")
    paths = [given] if isinstance(given, (str, os.PathLike)) else [*given]
    if len(paths) == 1 and os.fspath(paths[0]).endswith(".npy"):
        path = os.fspath(paths[0])
        return _from_array(open_npy(path, "predict: "), preprocessing, f"predict: {shown(path)}")
    if preprocessing.channels not in CHANNELS:
        shape = ", ".join(map(str, preprocessing.shape))
        raise UserError(
            f"predict: the network was trained on samples {preprocessing.samples}; give them as an array or one .npy file, "
            f"{preprocessing.dtype} [n, {shape}]"
        )
    names = _image_files(given)
    return (
        lambda start, stop: np.stack([read_sample(path, preprocessing) for path in names[start:stop]])
    ), names


def _from_array(samples: np.ndarray, preprocessing: Preprocessing, what: str) -> tuple[Read, list[str]]:
    if samples.dtype != preprocessing.dtype or samples.shape[1:] != preprocessing.shape:
        noun = "pixels" if preprocessing.is_image else "samples"
        shape = ", ".join(map(str, preprocessing.shape))
        raise UserError(
            f"{what}: {noun} must be {preprocessing.dtype} [n, {shape}], got {samples.dtype} {list(samples.shape)}"
        )
    names = [str(number) for number in range(len(samples))]
    return (lambda start, stop: np.array(samples[start:stop], order="C")), names


def _image_files(given: str | os.PathLike | Iterable[str]) -> list[str]:
    """List the image files to predict: one, those of a list file, or several."""
    if not isinstance(given, (str, os.PathLike)):
        return [str(path) for path in given]
    path = os.fspath(given)
    if os.path.isdir(path):
        raise UserError(f"predict: {path} is a folder; name its images, or a list of them")
    # OpenCV complains on stderr about a file that is not there.
    if os.path.isfile(path) and cv2.haveImageReader(path):
        return [path]
    return [str(name) for name in read_list(path, labelled=False)[0]]
