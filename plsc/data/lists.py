"""List files: one image and its label a line, `path<TAB>label`.

`ImageList` trains on them; `read_list` also serves prediction and validation sets. Indexes are numpy arrays: as Python
strings, 5 million paths would take 600 MB, and so in each worker.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from plsc.data.images import EncodedImages, read_file
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


class ImageList(EncodedImages):
    """The images of a list file (`path<TAB>label` a line; the labels are 0, 1, ... without gaps).

    `list`: the list file. `root`: where its relative paths start; empty = the list's own folder. Further keys:
    those of all image formats, see plsc.data.images.EncodedImages.
    """

    def __init__(self, list: str, root: str = "", **options):
        self.check(list=list, root=root, **options)
        super().__init__(**options)
        self.paths, labels = read_list(list, root)
        self._set_labels(labels, list)

    @classmethod
    def check(cls, **kwargs) -> None:
        super().check(**kwargs)
        if "list" in kwargs:
            check_list(kwargs["list"], kwargs.get("root", ""))

    def encoded(self, index: int) -> np.ndarray:
        return read_file(self.paths[index])

    def name(self, index: int) -> str:
        return self.paths[index]
