"""Images in files: a list file names them, OpenCV decodes them, the preprocessing contract sizes them.

`ImageList` trains on `path<TAB>label` lines; `read_list` and `load_image` also serve prediction, so that a
picture is prepared there exactly as it was in training.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import cv2
import numpy as np

from plsc.data.dataset import Dataset, preprocessing
from plsc.data.transforms import generator, resize
from plsc.errors import MissingFileError, UserError

BAD_LINES_SHOWN = 5


class Paths(Sequence):
    """Many paths in two arrays: as a list of strings, 5 million would take 600 MB, and so in each worker."""

    def __init__(self, root: str, text: bytearray, stops: array):
        self.root = root
        self._text = np.frombuffer(text, np.uint8)
        self._stops = np.frombuffer(stops, np.int64)

    def __len__(self) -> int:
        return len(self._stops)

    def __getitem__(self, index: int) -> str:
        index = range(len(self))[index]
        start = self._stops[index - 1] if index else 0
        return os.path.join(self.root, os.fsdecode(self._text[start : self._stops[index]].tobytes()))


def read_list(path: str, root: str = "", labelled: bool = True) -> tuple[Paths, np.ndarray]:
    """The images of a list file and their labels int64 [N].

    One image a line: `path<TAB>label`, or `path label` (the last space separates). CRLF and a byte order mark
    are tolerated. Relative paths start at `root`, or at the list's own folder if `root` is empty. With
    labelled=False a line may be a path alone; its label is -1. Raises MissingFileError, and UserError naming
    the bad lines.
    """
    check_list(path, root)
    text, stops, labels = bytearray(), array("q"), array("q")
    bad: list[str] = []
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            line = line.strip(b"\r\n")
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            image, _, label = line.rpartition(b"\t" if b"\t" in line else b" ")
            image, label = image.strip(), label.strip()
            if not labelled and not (image and label.isdigit()):
                image, label = line.strip(), None
            fault = _fault(line, image, label)
            if fault:
                bad.append(f"line {number}: {fault}")
                continue
            text += image
            stops.append(len(text))
            labels.append(-1 if label is None else int(label))
    if bad:
        more = f"; {len(bad)} bad lines in all" if len(bad) > BAD_LINES_SHOWN else ""
        wanted = "'path<TAB>label'" if labelled else "'path' or 'path<TAB>label'"
        raise UserError(f"{path}: each line must be {wanted}; {'; '.join(bad[:BAD_LINES_SHOWN])}{more}")
    if not labels:
        raise UserError(f"{path}: the list is empty; it needs one image a line")
    return Paths(root or os.path.dirname(path), text, stops), np.array(labels, np.int64)


def _fault(line: bytes, image: bytes, label: bytes | None) -> str | None:
    """What is wrong with a line, or None."""
    if not line.strip():
        return "empty"
    if not image:
        return f"'{os.fsdecode(line)}' is not both a path and a label"
    if label is not None and not (label.isdigit() and len(label) < 19):
        return f"label '{os.fsdecode(label)}' is not a whole number from 0 up"
    return None


def check_list(path: str, root: str = "") -> None:
    """Raise MissingFileError unless the list file, and the folder if one is given, exist."""
    if not os.path.isfile(path):
        raise MissingFileError(f"list: file '{path}' does not exist (looked in {Path.cwd()})")
    if root and not os.path.isdir(root):
        raise MissingFileError(f"root: folder '{root}' does not exist (looked in {Path.cwd()})")


def load_image(path: str, contract: dict) -> np.ndarray:
    """An image file as the preprocessing contract wants it: uint8 [C, H, W], RGB or grey, resized without
    keeping the aspect ratio. Raises MissingFileError, or UserError if the file cannot be decoded."""
    try:
        data = np.fromfile(path, np.uint8)
    except FileNotFoundError:
        raise MissingFileError(f"{path}: no such image") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    grey = contract["channels"] == "grey"
    picture = cv2.imdecode(data, cv2.IMREAD_GRAYSCALE if grey else cv2.IMREAD_COLOR) if data.size else None
    if picture is None:
        raise UserError(
            f"{path}: not an image that OpenCV can decode ({data.size} bytes); cut off, or not an image?"
        )
    picture = resize(picture, *contract["size"])
    return picture[np.newaxis] if grey else np.ascontiguousarray(picture[:, :, ::-1].transpose(2, 0, 1))


class ImageList(Dataset):
    """The images of a list file (`path<TAB>label` a line; the labels are 0, 1, ... without gaps).

    `list`: the list file. `root`: where its relative paths start; empty = the list's own folder.
    `size`: [height, width] that images are resized to. `channels`: "RGB" or "grey".
    `flip`: mirror every other image, drawn anew each epoch.
    """

    def __init__(
        self,
        list: str,
        root: str = "",
        size: tuple[int, int] = (112, 112),
        channels: Literal["RGB", "grey"] = "RGB",
        flip: bool = False,
        seed: int = 0,
    ):
        self.check(list=list, root=root, size=size, channels=channels)
        self.paths, self.labels = read_list(list, root)
        present = np.unique(self.labels)
        self.num_classes = int(present[-1]) + 1
        if len(present) < self.num_classes:
            gap = int(np.argmax(present != np.arange(len(present))))
            missing = self.num_classes - len(present)
            raise UserError(
                f"{list}: no image has label {gap} ({missing} of the labels 0 to {present[-1]} are missing); "
                "number the classes 0, 1, 2, ... without gaps"
            )
        self.image_shape = (1 if channels == "grey" else 3, *size)
        self.flip, self.seed = flip, seed
        self._contract = preprocessing(self.image_shape)

    @classmethod
    def check(cls, **kwargs) -> None:
        if "list" in kwargs:
            check_list(kwargs["list"], kwargs.get("root", ""))
        if "size" in kwargs and min(kwargs["size"]) < 1:
            raise UserError(f"size: must be [height, width] of at least 1, got {[*kwargs['size']]}")
        if kwargs.get("channels", "RGB") not in ("RGB", "grey"):
            raise UserError(f"channels: must be 'RGB' or 'grey', got '{kwargs['channels']}'")

    def sample(self, index: int, epoch: int) -> np.ndarray:
        image = load_image(self.paths[index], self._contract)
        if self.flip and generator(self.seed, epoch, index).random() < 0.5:
            return np.ascontiguousarray(image[:, :, ::-1])
        return image

    def name(self, index: int) -> str:
        return self.paths[index]
