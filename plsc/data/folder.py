"""Image folders: one folder for each identity, whose name is the identity's. `ImageFolder("faces").num_classes`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from plsc import log
from plsc.data.lists import SHOWN, ImageFiles, Paths, identity_names
from plsc.errors import MissingFileError, UserError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jp2")


def read_folder(folder: str) -> tuple[Paths, np.ndarray, list[str]]:
    """The images below the folders of `folder`, in the order of their names; their labels int64 [N]; the folders' names.

    The labels number the folders in the order of their names. Subfolders of an identity's folder are read too. What begins
    with a dot is left out; other files are counted in the log. UserError names folders without an image.
    """
    check_folder(folder)
    entries = sorted(
        (entry for entry in os.scandir(folder) if not entry.name.startswith(".")),
        key=lambda entry: entry.name,
    )
    names = [entry.name for entry in entries if entry.is_dir()]
    stray = [entry.name for entry in entries if not entry.is_dir()]
    images: list[str] = []
    counts = []
    for name in names:
        before = len(images)
        for file in _files_below(folder, name):
            (images if file.lower().endswith(EXTENSIONS) else stray).append(file)
        counts.append(len(images) - before)
    if not images:
        raise UserError(
            f"{folder}: has no images in folders of their own, one folder for each identity ({', '.join(EXTENSIONS)})"
        )
    empty = [name for name, count in zip(names, counts) if count == 0]
    if empty:
        raise UserError(
            f"{folder}: {_some(empty, 'folders have no image')}; remove them, or give them images"
        )
    if stray:
        log.get_logger().warning(
            f"{folder}: {_some(stray, 'files are no images of an identity, and are left out')}"
        )
    return Paths.of(folder, images), np.repeat(np.arange(len(names)), counts), names


def check_folder(folder: str) -> None:
    """Raise MissingFileError unless the folder exists."""
    if not os.path.isdir(folder):
        raise MissingFileError(f"folder: '{folder}' is no folder (looked in {Path.cwd()})")


def _files_below(root: str, name: str) -> Iterator[str]:
    with os.scandir(os.path.join(root, name)) as found:
        entries = sorted((entry.name, entry.is_dir()) for entry in found if not entry.name.startswith("."))
    for entry, is_folder in entries:
        path = f"{name}/{entry}"
        if is_folder:
            yield from _files_below(root, path)
        else:
            yield path


def _some(names: list[str], what: str) -> str:
    more = ", ..." if len(names) > SHOWN else ""
    return f"{len(names):,} {what}: {', '.join(names[:SHOWN])}{more}"


class ImageFolder(ImageFiles):
    """The images of a folder that has a folder for each identity; the sorted names are the labels 0, 1, ...

    `folder`: the folder. Further keys: those of plsc.data.lists.ImageFiles, and of all image formats, see
    plsc.data.images.EncodedImages.
    """

    def __init__(self, folder: str, **options):
        self.check(folder=folder, **options)
        super().__init__(**options)
        self.folder = folder
        paths, labels, names = read_folder(folder)
        self.identities = identity_names([os.path.join(folder, name) for name in names])
        self._set_files(paths, labels, folder)

    @property
    def folders(self) -> list[str]:
        """The names of the identities' folders, in the order of the labels."""
        return [os.path.basename(name) for name in self.identities.tolist()]

    @classmethod
    def check(cls, **kwargs) -> None:
        super().check(**kwargs)
        if "folder" in kwargs:
            check_folder(kwargs["folder"])

    @property
    def title(self) -> str:
        return os.path.basename(os.path.abspath(self.folder))
