"""Read image folders, which contain one folder for each identity. The folder's name is the identity's name.

Try it: `ImageFolder("faces").num_classes`.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from plsc.data.image_list import SHOWN, ImageFiles, Paths, identity_names, same_form
from plsc.errors import MissingFileError, UserError, escape, reading
from plsc.utils.logging import get_logger, warn_once
from plsc.utils.text import plural

EXTENSIONS = (
    *(".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jp2"),
    *(".gif", ".avif"),  # only newer releases of OpenCV decode these
)
_PARTS = {"train", "val", "valid", "validation", "dev", "test"}  # folders of a data set's parts
ALIGNMENT = "alignment.csv"  # file that plsc align writes beside the identities' folders


def read_folder(folder: str) -> tuple[Paths, np.ndarray, list[str]]:
    """Find the images in the folders of `folder`.

    Two folders belong to one identity if their names are equal in the composed Unicode form. Files and
    folders whose names begin with a dot, and the file that plsc align writes beside the folders, are ignored.
    The log reports all other files, deeper folders, and empty folders, which are not classes.

    Returns:
        paths: the images, sorted by name.
        labels: int64 [N], each image's identity as its place in the sorted names.
        names: the identities' names, sorted.

    Raises UserError, which names the folders with other files but without an image.
    """
    names, images, counts, others, empty = [], [], [], [], []
    for name, is_folder in entries(folder):
        if is_folder:
            found = entries(os.path.join(folder, name))
            if not found:
                empty.append(name)
                continue
            names.append(name)
            before = len(images)
            for file, further_down in found:
                (images if is_image(file) and not further_down else others).append(f"{name}/{file}")
            counts.append(len(images) - before)
        elif name != ALIGNMENT:
            others.append(name)
    if not names:
        raise UserError(f"{folder}: has no images in subfolders; each identity needs a folder")
    lacking = [name for name, count in zip(names, counts) if count == 0]
    if lacking:
        what = f"{plural(len(lacking), 'folder')} without an image ({', '.join(EXTENSIONS)}) directly in it"
        remedy = "remove it, add images, or name the folder further down"
        if lacking == names and "train" in names and _PARTS.issuperset(names):
            remedy = _remedy_for_parts(folder, names)
        raise UserError(f"{escape(folder)}: {what}: {_some(lacking)}; {remedy}")
    if others:
        what = f"{plural(len(others), 'file')} skipped, since they are not images in an identity's folder"
        warn_once(f"{escape(folder)}: {what}: {_some(others)}")
    if empty:
        warn_once(f"{escape(folder)}: {plural(len(empty), 'empty folder')} skipped: {_some(empty)}")
    known, label_of = np.unique(same_form(names), return_inverse=True)
    return Paths.of(folder, images), np.repeat(label_of, counts), known.tolist()


def _remedy_for_parts(folder: str, parts: list[str]) -> str:
    """Tell how to train on a data set's folder `train`, and how to evaluate on the last of the others."""
    remedy = f"if these are a data set's parts, name the folder {escape(os.path.join(folder, 'train'))}"
    for part in [name for name in parts if name != "train"][-1:]:
        other = escape(os.path.join(folder, part))
        remedy += (
            f"; to evaluate on the same classes in {other}, set DataLoader.Eval.dataset to "
            f"{{name: ImageFolder, folder: {other}}} with the size and channels of DataLoader.Train.dataset, "
            "and the latter's hold_out to 0"
        )
    return remedy


def _some(names: list[str]) -> str:
    return ", ".join([*map(escape, names[:SHOWN]), *["..."] * (len(names) > SHOWN)])


def entries(folder: str) -> list[tuple[str, bool]]:
    """List a folder's entries, sorted by name, as (name, whether it is a folder or a link to one).

    Hidden entries are excluded.
    """
    with reading(folder, missing="no such folder"):
        return sorted((entry.name, entry.is_dir()) for entry in os.scandir(folder) if entry.name[0] != ".")


def is_image(name: str) -> bool:
    """Return whether a file's name ends in one of EXTENSIONS."""
    return name.lower().endswith(EXTENSIONS)


def files_below(folder: str, below: str = "") -> Iterator[str]:
    """Yield the files in a folder and its subfolders, except hidden files. Links to folders are followed.

    Args:
        folder: the folder, in which the yielded paths start.
        below: a subfolder in it, as a relative path. Only its files are yielded.

    Raises UserError if a link leads to a folder that contains the link, because there would be no end.
    """
    here = os.path.realpath(os.path.join(folder, below))
    for name, is_folder in entries(os.path.join(folder, below)):
        path = os.path.join(below, name)
        if is_folder:
            inner = os.path.realpath(os.path.join(folder, path))
            if os.path.commonpath([inner, here]) == inner:
                raise UserError(
                    f"{escape(os.path.join(folder, path))}: is a link to a folder that contains it; remove it"
                )
            yield from files_below(folder, path)
        else:
            yield path


def images_below(folder: str) -> list[str]:
    """List the images in a folder at any depth, sorted by path.

    Hidden files, and the file that plsc align writes, are ignored. The log reports all other files. Raises
    UserError if there are no images.
    """
    files = sorted(files_below(folder))
    images = [os.path.join(folder, name) for name in files if is_image(name)]
    others = [name for name in files if not is_image(name) and name != ALIGNMENT]
    kinds = ", ".join(EXTENSIONS)
    if not images:
        raise UserError(f"{escape(folder)}: has no images ({kinds})")
    if others:
        what = f"{plural(len(others), 'file')} skipped, since their names do not end in {kinds}"
        get_logger().warning(f"{escape(folder)}: {what}: {_some(others)}")
    return images


def check_folder(folder: str) -> None:
    """Raise MissingFileError if the folder does not exist."""
    if not os.path.isdir(folder):
        raise MissingFileError(f"'{folder}' is not a folder (looked in {Path.cwd()})", key="folder")


class ImageFolder(ImageFiles):
    """The images in a folder that contains one folder for each identity.

    The labels 0, 1, ... number the folders, sorted by name.

    - `folder`: the folder.
    - further keys: those of EncodedImages (plsc.data.images).
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
