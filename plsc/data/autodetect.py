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


def open_images(path: str, **options) -> EncodedImages:
    """Open the labelled images in a .rec file (or in a folder that contains one), an image folder, or a list.

    Args:
        path: the file or the folder.
        options: keys that all image formats share (see plsc.data.images.EncodedImages), and `root`, which
            only a list uses.

    Raises MissingFileError if the path does not exist, and UserError for a file in another format.
    """
    root = options.pop("root", "")
    if not os.path.exists(path):
        raise MissingFileError(f"'{path}' does not exist (looked in {Path.cwd()})")
    if os.path.isdir(path):
        if not any(name.endswith(".rec") for name in os.listdir(path)):
            return ImageFolder(path, **options)
        return RecImages(path, **options)
    with open_regular(path) as file:
        start = file.read(4096)
    if start.startswith(struct.pack("<I", MAGIC)) or path.endswith(".rec"):
        return RecImages(path, **options)
    if b"\0" in start:
        raise UserError(f"{path}: is neither a .rec file nor text; give a .rec, a list of images or a folder")
    return ImageList(path, root=root, **options)
