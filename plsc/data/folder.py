"""Read image folders: one folder for each identity, whose name is the identity's.
`ImageFolder("faces").num_classes`."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from plsc.data.image_list import SHOWN, ImageFiles, Paths, identity_names
from plsc.errors import MissingFileError, UserError, reading, shown
from plsc.utils.logging import get_logger
from plsc.utils.text import counted

EXTENSIONS = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jp2")
ALIGNMENT = "alignment.csv"  # what plsc align writes beside the identities' folders


def read_folder(folder: str) -> tuple[Paths, np.ndarray, list[str]]:
    """List the images below the folders of `folder`, in the order of their names; their labels int64 [N]; the
    folders' names.

    The labels number the folders in the order of their names. Subfolders of an identity's folder are read
    too, and links to folders that do not lead back. What begins with a dot is left out, and what plsc align
    writes beside the folders; other files are counted in the log. UserError names folders without an image.
    """
    check_folder(folder)
    with reading(folder):
        entries = sorted((entry.name, entry.is_dir()) for entry in os.scandir(folder) if entry.name[0] != ".")
    names = [name for name, is_folder in entries if is_folder]
    others = [name for name, is_folder in entries if not is_folder and name != ALIGNMENT]
    images: list[str] = []
    counts = []
    for name in names:
        before = len(images)
        for file in _files_below(folder, name):
            (images if file.lower().endswith(EXTENSIONS) else others).append(file)
        counts.append(len(images) - before)
    if not images:
        raise UserError(
            f"{folder}: has no images in folders of their own, one folder for each identity "
            f"({', '.join(EXTENSIONS)})"
        )
    empty = [name for name, count in zip(names, counts) if count == 0]
    if empty:
        what = f"{counted(len(empty), 'folder')} without an image; remove, or add images"
        raise UserError(f"{shown(folder)}: {what}: {_some(empty)}")
    if others:
        what = f"{counted(len(others), 'file')} left out, no image of an identity"
        get_logger().warning(f"{shown(folder)}: {what}: {_some(others)}")
    return Paths.of(folder, images), np.repeat(np.arange(len(names)), counts), names


def _some(names: list[str]) -> str:
    return ", ".join([*map(shown, names[:SHOWN]), *["..."] * (len(names) > SHOWN)])


def _files_below(root: str, name: str) -> list[str]:
    """List the files below the folder `name` of `root`, in the order of their names, subfolders among them.
    UserError for a folder that cannot be read."""

    def fail(error: OSError) -> None:
        raise error

    files = []
    top = os.path.join(root, name)
    with reading(top):
        for path, folders, inside in os.walk(top, onerror=fail, followlinks=True):
            folders[:] = [name for name in folders if name[0] != "." and not _leads_back(path, name)]
            below = name + path[len(top) :]
            files += [f"{below}/{file}" for file in inside if file[0] != "."]
    return sorted(files, key=lambda file: file.split("/"))


def _leads_back(path: str, name: str) -> bool:
    """Say whether a folder of `path` is a link to one that `path` lies in."""
    link = os.path.join(path, name)
    return os.path.islink(link) and f"{os.path.realpath(path)}/".startswith(f"{os.path.realpath(link)}/")


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
        f"those are the identities, give {shown(meant)}"
    )


def check_folder(folder: str) -> None:
    """Raise MissingFileError unless the folder exists."""
    if not os.path.isdir(folder):
        raise MissingFileError(f"'{folder}' is no folder (looked in {Path.cwd()})", key="folder")


class ImageFolder(ImageFiles):
    """The images of a folder that has a folder for each identity; the sorted names are the labels 0, 1, ...

    `folder`: the folder. Further keys: those of plsc.data.image_list.ImageFiles, and of all image formats,
    see plsc.data.images.EncodedImages.
    """

    def __init__(self, folder: str, **options):
        self.check(folder=folder, **options)
        super().__init__(**options)
        self.folder = folder
        if self.aligned is None and os.path.isfile(os.path.join(folder, ALIGNMENT)):
            self.aligned = True
        paths, labels, names = read_folder(folder)
        self.identities = identity_names([os.path.join(folder, name) for name in names])
        self.nested_hint = nested_hint(folder, paths)
        self._set_files(paths, labels, folder)

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
