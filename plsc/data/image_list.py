"""Read list files, which contain one image and its label per line: `path<TAB>label`.

`ImageList` is a list file's data set. `read_list` is also used for prediction and validation sets.
All sets whose images are separate files derive from `ImageFiles`. Paths are stored in numpy arrays,
because 5 million Python strings would take 600 MB. Try it: `read_list("label.txt")`.
"""

from __future__ import annotations

import functools
import os
import re
import unicodedata
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from plsc.data.images import EncodedImages, read_file
from plsc.errors import MissingFileError, UserError, escape
from plsc.utils.files import open_regular
from plsc.utils.logging import get_logger

SHOWN = 5  # bad lines or missing images that a message names
# So many images of a list are checked at the start. The identities of longer lists are unknown.
CHECKED = 1_000_000
UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # byte order marks
LABEL_DIGITS = 18  # a number of so many digits fits into an int64


class Paths(Sequence):
    """Stores many paths in two arrays.

    Args:
        root: folder in which relative paths start.
        text: uint8 [n], all paths' bytes, one after the other.
        stops: int64 [N], the position in `text` at which each path ends.
    """

    def __init__(self, root: str, text: np.ndarray, stops: np.ndarray):
        self.root = root
        self._text = text
        self._stops = stops

    @classmethod
    def of(cls, root: str, paths: Iterable[str]) -> Paths:
        text, stops = bytearray(), array("q")
        for path in paths:
            text += os.fsencode(path)
            stops.append(len(text))
        return cls(root, np.frombuffer(text, np.uint8), np.frombuffer(stops, np.int64))

    def __len__(self) -> int:
        return len(self._stops)

    def __getitem__(self, index: int) -> str:
        return os.path.join(self.root, self.written(index))

    def written(self, index: int) -> str:
        """Return a path as it was given, without the root."""
        index = range(len(self))[index]
        start = self._stops[index - 1] if index else 0
        return os.fsdecode(self._text[start : self._stops[index]].tobytes())

    def where(self, keep: np.ndarray) -> Paths:
        """Return the paths for which `keep`, bool [N], is True."""
        lengths = np.diff(self._stops, prepend=0)
        return Paths(self.root, self._text[np.repeat(keep, lengths)], np.cumsum(lengths[keep]))


def read_list(path: str, root: str = "", labelled: bool = True) -> tuple[Paths, np.ndarray]:
    """Read the image paths in a list file and their labels, int64 [N].

    A line is `path<TAB>label`, or `path label` (the last space separates). CRLF and a byte order mark are
    accepted.

    Args:
        path: the list file.
        root: folder in which relative paths start. Empty: the list's own folder.
        labelled: whether each line must have a label. If False, a line may be a path without a label. Its
            label is then -1.

    Raises MissingFileError if the file or the folder does not exist, and UserError, which names the bad
    lines.
    """
    check_list(path, root)
    text, stops, labels = bytearray(), array("q"), array("q")
    bad, commas = [], False
    with open_regular(path) as file:
        for number, line in enumerate(file, start=1):
            if number == 1 and line.startswith(UTF_16):
                raise UserError(f"{path}: is UTF-16; save it as UTF-8")
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            image, label, fault = _split(line.strip(b"\r\n"), labelled)
            if fault:
                bad.append(f"line {number}: {fault}")
                commas = commas or re.search(rb"[^,],\s*\d+\s*$", line) is not None
            text += image
            stops.append(len(text))
            labels.append(label)
    if bad:
        more = f"; {len(bad)} bad lines in all" if len(bad) > SHOWN else ""
        wanted = "'path<TAB>label'" if labelled else "'path' or 'path<TAB>label'"
        remedy = ""
        if commas:
            remedy = "; the columns are separated by commas: put tabs in their place, without a heading"
        elif max(labels) < 0:
            remedy = "; number the classes, or use ImageFolder for folders of their names"
        raise UserError(f"{path}: each line must be {wanted}; {'; '.join(bad[:SHOWN])}{more}{remedy}")
    if not labels:
        raise UserError(f"{path}: the list is empty; it needs one image per line")
    paths = Paths(
        root or os.path.dirname(path), np.frombuffer(text, np.uint8), np.frombuffer(stops, np.int64)
    )
    return paths, np.frombuffer(labels, np.int64)


def _split(line: bytes, labelled: bool) -> tuple[bytes, int, str]:
    """Split a line into its path, its label and the fault's description, or ""."""
    image, _, label = line.rpartition(b"\t" if b"\t" in line else b" ")
    image, label = image.strip(), label.strip()
    if image and label.isdigit() and len(label) <= LABEL_DIGITS:
        return image, int(label), ""
    line = line.strip()
    if not line:
        return b"", -1, "empty"
    if not labelled and not (image and label.isdigit()):
        return line, -1, ""
    if not image:
        return b"", -1, f"'{escape(line[:200])}' is not both a path and a label"
    return b"", -1, f"label '{escape(label[:200])}' is not a whole number from 0 up"


def check_list(path: str, root: str = "") -> None:
    """Raise MissingFileError if the list file does not exist, or if `root` is given and does not exist.

    Raises UserError if `path` is a folder.
    """
    if os.path.isdir(path):
        raise UserError(
            f"'{path}' is a folder; name the text file that lists the images, or give name: ImageFolder and "
            f"folder: {path} for a folder with a folder for each identity",
            key="list",
        )
    if not os.path.exists(path):
        raise MissingFileError(f"file '{path}' does not exist (looked in {Path.cwd()})", key="list")
    if root and not os.path.isdir(root):
        raise MissingFileError(f"folder '{root}' does not exist (looked in {Path.cwd()})", key="root")


def refuse_missing(paths: Paths, where: str) -> None:
    """Raise MissingFileError, which begins with `where`, if an image is not an existing file.

    If there are more than CHECKED images, CHECKED evenly spaced ones are checked, and the log reports it.
    """
    count = len(paths)
    looked_at = range(count)
    if count > CHECKED:
        looked_at = np.linspace(0, count - 1, CHECKED).astype(np.int64).tolist()
        get_logger().info(f"{where}: {count:,} images; looked for {CHECKED:,} of them, evenly spaced")
    missing = [index for index in looked_at if not os.path.isfile(paths[index])]
    if missing:
        named = ", ".join(escape(paths.written(index)) for index in missing[:SHOWN])
        raise MissingFileError(
            f"{where}: {len(missing):,} of its images do not exist: {named} (relative paths start at "
            f"{os.path.abspath(paths.root)})" + _remedy_for_missing(paths.written(missing[0]))
        )


def _remedy_for_missing(written: str) -> str:
    """Tell what is wrong with how the path of a missing image is written. "" if nothing is known."""
    if written[:1] in "\"'":
        return "; remove the quotes around the paths"
    if "\\" in written:
        return "; write the paths with / in place of \\"
    if "\t" in written:
        return "; a line must have two columns"
    return ""


def same_form(names: Iterable[str]) -> np.ndarray:
    """Return the names in the composed Unicode form (NFC), text [N].

    Some file systems and programs use the composed form, others the decomposed form.
    """
    return np.array([unicodedata.normalize("NFC", name) for name in names])


def identity_names(folders: Sequence[str]) -> np.ndarray:
    """Return the folders' names as the identities' names, text [N], in one Unicode form.

    If the names differ only in a number (0001, person_7), they identify a person in their own set only. The
    identities are then named by their folders' whole paths.
    """
    folders = [os.path.abspath(folder) for folder in folders]  # "" and "a/.." do not contain a name
    names = [os.path.basename(folder) for folder in folders]
    stems = {re.sub(r"\d+", "#", name) for name in names}
    numbered = len(stems) == 1 and "#" in stems.pop()
    return same_form(folders if numbered else names)


class ImageFiles(EncodedImages):
    """Labelled images in separate files. ImageList and ImageFolder derive from it."""

    paths: Paths

    def _set_files(self, paths: Paths, labels: np.ndarray, where: str) -> None:
        self.paths = paths
        stays = self._set_labels(labels, where)
        if not stays.all():
            self.paths = paths.where(stays)

    def encoded(self, index: int) -> np.ndarray:
        return read_file(self.paths[index])

    def name(self, index: int) -> str:
        return self.paths[index]

    @functools.cached_property
    def identities(self) -> np.ndarray | None:
        """The folders' names if each class has a folder of its own, otherwise None.

        It is also None for more than CHECKED images.
        """
        if len(self) > CHECKED:
            return None
        pairs = {(label, os.path.dirname(path)) for label, path in zip(self.labels.tolist(), self.paths)}
        pairs = {(label, os.path.abspath(folder)) for label, folder in pairs}  # a/../b is b
        one_to_one = len(pairs) == self.num_classes == len({folder for _, folder in pairs})
        return identity_names([folder for _, folder in sorted(pairs)]) if one_to_one else None


class ImageList(ImageFiles):
    """The images in a list file. A line is `path<TAB>label`. The labels are 0, 1, ... without gaps.

    - `list`: the list file.
    - `root`: folder in which relative paths start. If it is empty, they start in the list's own folder.
    - further keys: those of EncodedImages (plsc.data.images).
    """

    def __init__(self, list: str, root: str = "", **options):
        super().__init__(**options)
        paths, labels = read_list(list, root)
        refuse_missing(paths, list)
        self._set_files(paths, labels, list)
        # The title includes the folder, because many lists are named label.txt.
        self.title = os.path.join(*Path(os.path.abspath(list)).parts[-2:])

    @classmethod
    def check(cls, list: str, root: str = "", **options) -> None:
        check_list(list, root)
