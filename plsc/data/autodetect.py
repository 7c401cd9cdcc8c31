"""Detect the image format at a path.

Try it: `open_images("train.rec")`, `open_images("faces/")` or `open_images("label.txt")`.
"""

import os
import struct
from pathlib import Path

from plsc.data.folder import ImageFolder
from plsc.data.image_list import ImageList
from plsc.data.images import EncodedImages
from plsc.data.rec import RecImages
from plsc.data.recordio import MAGIC
from plsc.errors import MissingFileError, UserError
from plsc.utils.files import open_regular


def open_images(path: str, root: str = "", **options) -> EncodedImages:
    """Open the labelled images in a .rec file (or in a folder that contains one), an image folder, or a list.

    Args:
        path: the file or the folder.
        root: folder in which a list's relative paths start. Only a list may have one.
        options: keys that all image formats share (see plsc.data.images.EncodedImages).

    Raises MissingFileError if the path does not exist, and UserError for a file in another format.
    """
    kind = _kind_of(path)
    if kind is ImageList:
        return ImageList(path, root=root, **options)
    if root:
        raise UserError(f"'{root}' has no effect, because {path} is not a list; remove it", key="root")
    return kind(path, **options)


def _kind_of(path: str) -> type[EncodedImages]:
    """Return the class that reads the images at a path. Raises what `open_images` raises."""
    if not os.path.exists(path):
        raise MissingFileError(f"'{path}' does not exist (looked in {Path.cwd()})")
    if os.path.isdir(path):
        return RecImages if any(name.endswith(".rec") for name in os.listdir(path)) else ImageFolder
    with open_regular(path) as file:
        start = file.read(4096)
    if start.startswith(struct.pack("<I", MAGIC)) or path.endswith(".rec"):
        return RecImages
    if b"\0" in start:
        raise UserError(f"{path}: is neither a .rec file nor text; give a .rec, a list of images or a folder")
    return ImageList
