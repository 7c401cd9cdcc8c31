"""Read image folders, which contain one folder for each identity. The folder's name is the identity's name.

Try it: `ImageFolder("faces").num_classes`.
"""

import os
from pathlib import Path

import numpy as np

from plsc.data.image_list import SHOWN, ImageFiles, Paths, identity_names, same_form
from plsc.errors import MissingFileError, UserError, escape, reading
from plsc.utils.logging import get_logger
from plsc.utils.text import plural

EXTENSIONS = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jp2")
_PARTS = {"train", "val", "valid", "validation", "dev", "test"}  # folders of a data set's parts
ALIGNMENT = "alignment.csv"  # file that plsc align writes beside the identities' folders


def read_folder(folder: str) -> tuple[Paths, np.ndarray, list[str]]:
    """Find the images in the folders of `folder`.

    Two folders belong to one identity if their names are equal in the composed Unicode form. Files and
    folders whose names begin with a dot, and the file that plsc align writes beside the folders, are ignored.
    The log reports all other files and deeper folders.

    Returns:
        paths: the images, sorted by name.
        labels: int64 [N], each image's identity as its place in the sorted names.
        names: the identities' names, sorted.

    Raises UserError, which names the folders without an image.
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
        raise UserError(f"{folder}: has no images in subfolders; each identity needs a folder")
    empty = [name for name, count in zip(names, counts) if count == 0]
    if empty:
        what = f"{plural(len(empty), 'folder')} without an image ({', '.join(EXTENSIONS)}) directly in it"
        remedy = "remove it, add images, or name the folder further down"
        if empty == names and "train" in names and _PARTS.issuperset(names):
            remedy = _remedy_for_parts(folder, names)
        raise UserError(f"{escape(folder)}: {what}: {_some(empty)}; {remedy}")
    if others:
        what = f"{plural(len(others), 'file')} skipped, since they are not images in an identity's folder"
        get_logger().warning(f"{escape(folder)}: {what}: {_some(others)}")
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


def images_below(folder: str) -> list[str]:
    """List the images in a folder at any depth, sorted by path. Raises UserError if there are none."""
    found = [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names]
    images = sorted(name for name in found if name.lower().endswith(EXTENSIONS))
    if not images:
        raise UserError(f"{escape(folder)}: has no images ({', '.join(EXTENSIONS)})")
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
