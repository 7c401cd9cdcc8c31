"""Read list files, which contain one image and its label per line, as `path<TAB>label` or in a .csv file.

`ImageList` is a list file's data set. `read_list` is also used for prediction and validation sets.
All sets whose images are separate files derive from `ImageFiles`. Paths are stored in numpy arrays,
because 5 million Python strings would take 600 MB. Try it: `read_list("label.txt")`.
"""

from __future__ import annotations

import csv
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


def read_list(path: str, root: str = "", labelled: bool = True) -> tuple[Paths, np.ndarray, list[str] | None]:
    """Read the image paths in a list file, and their labels.

    A line is `path<TAB>label`, or `path number` (the last space separates). In a file whose name ends in .csv
    it is `path,label`, and quotes may enclose a column. The labels are all numbers, or all names. CRLF and a
    byte order mark are accepted. The first line is a heading if its path has no file ending and does not
    exist, and its label is not a number.

    Args:
        path: the list file.
        root: folder in which relative paths start. Empty: the list's own folder.
        labelled: whether each line must have a label. If False, a line may be a path without a label. Its
            label is then -1, and so is a name.

    Returns:
        paths: the images.
        labels: int64 [N], each image's number, or its name's place in the names.
        names: the names, sorted and in one Unicode form. None if the labels are numbers.

    Raises MissingFileError if the file or the folder does not exist, and UserError, which names the bad
    lines.
    """
    check_list(path, root)
    root = root or os.path.dirname(path)
    is_csv = path.lower().endswith(".csv")
    text, stops, labels = bytearray(), array("q"), array("q")
    named: dict[bytes, int] = {}  # name -> the first line with it, whose negative number is the label for now
    bad, commas = [], False
    with open_regular(path) as file:
        for number, line in enumerate(file, start=1):
            if number == 1 and line.startswith(UTF_16):
                raise UserError(f"{path}: is UTF-16; save it as UTF-8")
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            line = line.strip(b"\r\n")
            tab = b"\t" in line
            columns = is_csv or tab
            image, label, fault = (_split_csv if is_csv and not tab else _split)(line, labelled)
            is_number = label.isdigit() and len(label) <= LABEL_DIGITS
            if number == 1 and columns and not is_number and _is_no_file(image, root):
                get_logger().info(f"{escape(path)}: line 1 is taken for a heading: '{escape(line[:200])}'")
                continue
            if labelled and not (fault or is_number or columns):
                fault = f"label '{escape(label[:200])}' is not a whole number from 0 up"
            if fault:
                bad.append((number, fault))
                commas = commas or re.search(rb"[^,],\s*\d+\s*$", line) is not None
            text += image
            stops.append(len(text))
            by_name = labelled and not (fault or is_number)
            labels.append(
                int(label) if is_number else -1 - named.setdefault(label, number) if by_name else -1
            )
    if named and max(labels) >= 0:
        what = "is not a whole number from 0 up, as other labels are"
        bad += [(number, f"label '{escape(label[:200])}' {what}") for label, number in named.items()]
    if bad:
        more = f"; {len(bad)} bad lines in all" if len(bad) > SHOWN else ""
        wanted = ("'path,label'" if is_csv else "'path<TAB>label'") + ("" if labelled else " or 'path'")
        remedy = ""
        if commas and not is_csv:
            remedy = "; the columns are separated by commas: give the file a name that ends in .csv"
        elif not is_csv and max(labels) < 0:
            remedy = "; the label is a number or, after a tab, a name"
        shown = "; ".join(f"line {number}: {fault}" for number, fault in sorted(bad)[:SHOWN])
        raise UserError(f"{path}: each line must be {wanted}; {shown}{more}{remedy}")
    if not labels:
        raise UserError(f"{path}: the list is empty; it needs one image per line")
    paths = Paths(root, np.frombuffer(text, np.uint8), np.frombuffer(stops, np.int64))
    numbers = np.frombuffer(labels, np.int64)
    if not named:
        return paths, numbers, None
    names, number_of = np.unique(same_form(map(os.fsdecode, named)), return_inverse=True)
    get_logger().info(f"{escape(path)}: {len(names):,} classes, numbered by their sorted names")
    return paths, number_of[np.searchsorted([*named.values()], -1 - numbers)], names.tolist()


def _is_no_file(image: bytes, root: str) -> bool:
    """Return whether a path has no file ending and does not exist."""
    return not os.path.splitext(image)[1] and not os.path.exists(os.path.join(os.fsencode(root), image))


def _split(line: bytes, labelled: bool) -> tuple[bytes, bytes, str]:
    """Split a line into its path, its label and the fault's description, or ""."""
    image, separator, label = line.rpartition(b"\t" if b"\t" in line else b" ")
    if not labelled and separator != b"\t" and not label.isdigit():
        image, label = line, b""
    return _checked(line, image.strip(), label.strip(), labelled)


def _split_csv(line: bytes, labelled: bool) -> tuple[bytes, bytes, str]:
    """Split a line of a .csv file as `_split` does."""
    try:
        fields = next(csv.reader([os.fsdecode(line)], skipinitialspace=True), [])
    except csv.Error as error:
        return b"", b"", str(error)
    if len(fields) > 2:
        return b"", b"", f"has {len(fields)} columns"
    image, label = [*(os.fsencode(field).strip() for field in fields), b"", b""][:2]
    return _checked(line, image, label, labelled)


def _checked(line: bytes, image: bytes, label: bytes, labelled: bool) -> tuple[bytes, bytes, str]:
    if not line.strip():
        return b"", b"", "empty"
    if not image or (labelled and not label):
        return b"", b"", f"'{escape(line.strip()[:200])}' is not both a path and a label"
    return image, label, ""


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
    """The images in a list file. A line is `path<TAB>label`.

    - `list`: the list file. The labels are 0, 1, ... without gaps, or the classes' names, which are then
      numbered in sorted order. If the file's name ends in .csv, a line is `path,label`. A first line with
      headings is ignored.
    - `root`: folder in which relative paths start. If it is empty, they start in the list's own folder.
    - further keys: those of EncodedImages (plsc.data.images).
    """

    def __init__(self, list: str, root: str = "", **options):
        super().__init__(**options)
        paths, labels, names = read_list(list, root)
        refuse_missing(paths, list)
        if names:
            self.identities = np.array(names)
        self._set_files(paths, labels, list)
        # The title includes the folder, because many lists are named label.txt.
        self.title = os.path.join(*Path(os.path.abspath(list)).parts[-2:])

    @classmethod
    def check(cls, list: str, root: str = "", **options) -> None:
        check_list(list, root)
