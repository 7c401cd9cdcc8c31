"""Read image folders: one folder for each identity, whose name is the identity's.
`ImageFolder("faces").num_classes`."""

import os
from pathlib import Path

import numpy as np

from plsc.data.image_list import SHOWN, ImageFiles, Paths, identity_names, same_form
from plsc.errors import MissingFileError, UserError, escape, reading
from plsc.utils.logging import get_logger
from plsc.utils.text import plural

EXTENSIONS = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jp2")
ALIGNMENT = "alignment.csv"  # what plsc align writes beside the identities' folders


def read_folder(folder: str) -> tuple[Paths, np.ndarray, list[str]]:
    """List the images below the folders of `folder`, in the order of their names; their labels int64 [N]; the
    folders' names.

    The labels number the names in their order; two folders whose names are the same in one Unicode form are
    one identity's. What begins with a dot is left out, and what plsc align writes beside the
    folders; other files, and folders further down, are counted in the log.
    UserError names folders without an image.
    """
    names, images, counts, others = [], [], [], []
    for name, is_folder in entries(folder):
        if is_folder:
            names.append(name)
            before = len(images)
            for file, further_down in entries(os.path.join(folder, name)):
                is_image = file.lower().endswith(EXTENSIONS) and not further_down
                (images if is_image else others).append(f"{name}/{file}")
            counts.append(len(images) - before)
        elif name != ALIGNMENT:
            others.append(name)
    if not names:
        raise UserError(f"{folder}: has no images in folders of their own, one folder for each identity")
    empty = [name for name, count in zip(names, counts) if count == 0]
    if empty:
        what = f"{plural(len(empty), 'folder')} without an image ({', '.join(EXTENSIONS)}) right in it"
        remedy = "remove, or add images, or name the folder further down"
        raise UserError(f"{escape(folder)}: {what}: {_some(empty)}; {remedy}")
    if others:
        what = f"{plural(len(others), 'file')} left out, no image of an identity"
        get_logger().warning(f"{escape(folder)}: {what}: {_some(others)}")
    known, label_of = np.unique(same_form(names), return_inverse=True)
    return Paths.of(folder, images), np.repeat(label_of, counts), known.tolist()


def _some(names: list[str]) -> str:
    return ", ".join([*map(escape, names[:SHOWN]), *["..."] * (len(names) > SHOWN)])


def entries(folder: str) -> list[tuple[str, bool]]:
    """List what lies in a folder, in the order of the names, and whether it is a folder, too, or a link to
    one; hidden ones are left out."""
    with reading(folder, missing="no such folder"):
        return sorted((entry.name, entry.is_dir()) for entry in os.scandir(folder) if entry.name[0] != ".")


def check_folder(folder: str) -> None:
    """Raise MissingFileError unless the folder exists."""
    if not os.path.isdir(folder):
        raise MissingFileError(f"'{folder}' is no folder (looked in {Path.cwd()})", key="folder")


class ImageFolder(ImageFiles):
    """The images of a folder that has a folder for each identity; the sorted names are the labels 0, 1, ...

    `folder`: the folder. Further keys: those of plsc.data.images.EncodedImages.
    """

    def __init__(self, folder: str, **options):
        super().__init__(**options)
        self.title = os.path.basename(os.path.abspath(folder))
        if self.aligned is None and os.path.isfile(os.path.join(folder, ALIGNMENT)):
            self.aligned = True
        paths, labels, names = read_folder(folder)
        self.identities = identity_names([os.path.join(folder, name) for name in names])
        self._set_files(paths, labels, folder)

    @classmethod
    def check(cls, folder: str, **options) -> None:
        check_folder(folder)
