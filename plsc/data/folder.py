"""Read image folders: one folder for each identity, whose name is the identity's.
`ImageFolder("faces").num_classes`."""

from __future__ import annotations

import contextlib
import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from plsc.data.image_list import SHOWN, ImageFiles, Paths, identity_names
from plsc.errors import MissingFileError, UserError, shown
from plsc.utils.files import refuse_irregular
from plsc.utils.logging import get_logger
from plsc.utils.text import counted

EXTENSIONS = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jp2")
# Of images too, but OpenCV does not decode them everywhere, or not at all.
UNREAD = (".gif", ".heic", ".heif", ".avif", ".jxl", ".svg", ".psd", ".dng", ".cr2", ".nef", ".arw")
ALIGNMENT = "alignment.csv"  # what plsc align writes beside the identities' folders


def read_folder(folder: str) -> tuple[Paths, np.ndarray, list[str]]:
    """List the images below the folders of `folder`, in the order of their names; their labels int64 [N]; the
    folders' names.

    The labels number the folders in the order of their names. Subfolders of an identity's folder are read
    too. What begins with a dot is left out, and what plsc align writes beside the folders; other files are
    counted in the log. UserError names folders without an image; within `collected_problems` they are left
    out.
    """
    check_folder(folder)
    entries = _entries(folder)
    names = [name for name, is_folder in entries if is_folder]
    others = [name for name, is_folder in entries if not is_folder and name != ALIGNMENT]
    images: list[str] = []
    counts = []
    for name in names:
        before = len(images)
        for file in _files_below(folder, name):
            (images if file.lower().endswith(EXTENSIONS) else others).append(file)
        counts.append(len(images) - before)
    unread = [name for name in others if name.lower().endswith(UNREAD)]
    kinds = ", ".join(sorted({os.path.splitext(name)[1].lower() for name in unread}))
    if not images:
        remedy = f"; {kinds} is not read, convert it to .png or .jpg" if unread else ""
        raise UserError(
            f"{folder}: has no images in folders of their own, one folder for each identity "
            f"({', '.join(EXTENSIONS)}){remedy}"
        )
    if unread:
        what = f"left out, {kinds} is not read; convert to .png or .jpg"
        _report("warning", folder, "file", what, unread)
    empty = [name for name, count in zip(names, counts) if count == 0]
    if empty:
        _report("error", folder, "folder", "without an image; remove, or add images", empty)
        names, counts = zip(*((name, count) for name, count in zip(names, counts) if count))
    others = [name for name in others if name not in set(unread)]
    if others:
        _report("warning", folder, "file", "left out, no image of an identity", others)
    _warn_of_same_names(folder, [*names])
    return Paths.of(folder, images), np.repeat(np.arange(len(names)), counts), [*names]


class Problem(NamedTuple):
    """A fault of a folder: "error" or "warning", a text, and all names concerned."""

    level: str
    text: str
    names: list[str]


_collected: list[Problem] | None = None


@contextlib.contextmanager
def collected_problems() -> Iterator[list[Problem]]:
    """Collect the problems of folders instead of logging or raising them; files with problems are left
    out."""
    global _collected
    _collected = []
    try:
        yield _collected
    finally:
        _collected = None


def _report(level: str, folder: str, noun: str, what: str, names: list[str]) -> None:
    text = f"{counted(len(names), noun)} {what}"
    if _collected is not None:
        _collected.append(Problem(level, text, names))
        return
    line = f"{shown(folder)}: {text}: {', '.join(map(shown, names[:SHOWN]))}{', ...' if len(names) > SHOWN else ''}"
    if level == "error":
        raise UserError(line)
    get_logger().warning(line)


def nested_hint(folder: str, paths: Paths) -> str:
    """Suggest the folder that was probably meant if all images of `read_folder` lie in subfolders of the
    identities'; else ""."""
    below = set()
    for index in range(len(paths)):
        parts = paths.written(index).split("/")
        if len(parts) < 3:
            return ""
        below.add("/".join(parts[:2]))
    if len(below) < 2:
        return ""
    first = min(below)
    meant = os.path.join(folder, first.partition("/")[0])
    return (
        f"its images lie one level further down, in {len(below):,} folders such as {shown(first)}; if "
        "those are the identities, "
        f"give {shown(meant)}"
    )


def check_folder(folder: str) -> None:
    """Raise MissingFileError unless the folder exists."""
    if not os.path.isdir(folder):
        raise MissingFileError(f"'{folder}' is no folder (looked in {Path.cwd()})", key="folder")


def _files_below(root: str, name: str) -> Iterator[str]:
    """List the files below the folder `name` of `root`, in the order of their names. Raises UserError, see
    _entries."""
    ahead: list[tuple[str, bool, tuple]] = [(name, True, ())]  # path, whether a folder, the folders above it
    while ahead:
        path, is_folder, above = ahead.pop()
        if not is_folder:
            yield path
            continue
        folder = os.path.join(root, path)
        status = os.stat(folder)
        here = status.st_dev, status.st_ino
        if here in above:
            raise UserError(f"{shown(folder)}: is a link to a folder that it lies in; remove it")
        above = (*above, here)
        ahead += [(f"{path}/{entry}", is_folder, above) for entry, is_folder in reversed(_entries(folder))]


def _entries(folder: str) -> list[tuple[str, bool]]:
    """List the entries of a folder, sorted by name, and whether each is a folder; without names that begin
    with a dot. Raises UserError for a folder that cannot be read, and an image that is no regular file."""
    try:
        with os.scandir(folder) as scanned:
            entries = sorted(
                (entry.name, entry.is_dir(), entry.is_file()) for entry in scanned if entry.name[0] != "."
            )
        for name, is_folder, is_file in entries:
            if name.lower().endswith(EXTENSIONS) and not is_folder and not is_file:
                path = os.path.join(folder, name)
                refuse_irregular(path, os.stat(path).st_mode)
    except FileNotFoundError as error:
        raise UserError(f"{shown(error.filename)}: is a link to nothing; remove it, or mend it") from error
    except OSError as error:
        raise UserError(f"{shown(error.filename or folder)}: cannot be read: {error.strerror}") from error
    return [(name, is_folder) for name, is_folder, _ in entries]


def _warn_of_same_names(folder: str, names: list[str]) -> None:
    """Warn of identities whose names differ only in their Unicode form: most likely one person."""
    seen: dict[str, str] = {}
    same = [name for name in names if seen.setdefault(unicodedata.normalize("NFC", name), name) != name]
    if same:
        what = "with another's name in other Unicode characters (NFC and NFD): one person, most likely; rename, or put together"
        _report("warning", folder, "folder", what, same)


def is_aligned(folder: str) -> bool:
    """Say whether `plsc align` wrote the folder: its table lies there."""
    return os.path.isfile(os.path.join(folder, ALIGNMENT))


class ImageFolder(ImageFiles):
    """The images of a folder that has a folder for each identity; the sorted names are the labels 0, 1, ...

    `folder`: the folder. Further keys: those of plsc.data.image_list.ImageFiles, and of all image formats,
    see plsc.data.images.EncodedImages.

    Attributes: nested_hint: see the function.
    """

    def __init__(self, folder: str, **options):
        self.check(folder=folder, **options)
        super().__init__(**options)
        self.folder = folder
        if self.aligned is None and is_aligned(folder):
            self.aligned = True
        paths, labels, names = read_folder(folder)
        self.identities = identity_names([os.path.join(folder, name) for name in names])
        self.nested_hint = nested_hint(folder, paths)
        try:
            self._set_files(paths, labels, folder)
        except UserError as error:
            if not self.nested_hint:
                raise
            raise UserError(f"{error}; {self.nested_hint}") from error

    @property
    def folders(self) -> list[str]:
        """Names of the identities' folders, in the order of the labels."""
        return [os.path.basename(name) for name in self.identities.tolist()]

    @classmethod
    def check(cls, **kwargs) -> None:
        super().check(**kwargs)
        if "folder" in kwargs:
            check_folder(kwargs["folder"])

    @property
    def title(self) -> str:
        return os.path.basename(os.path.abspath(self.folder))
