"""Detect the format of a path: `open_images("train.rec")`, `open_images("faces/")`,
`open_images("label.txt")`."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from plsc.data.bin_packs import BinPairs
from plsc.data.folder import EXTENSIONS, UNREAD, ImageFolder
from plsc.data.image_list import ImageList
from plsc.data.images import EncodedImages, EncodedPairs
from plsc.data.rec import RecImages
from plsc.data.recordio import MAGIC
from plsc.errors import MissingFileError, UserError
from plsc.utils.files import open_regular


def open_images(path: str, **options) -> EncodedImages:
    """Open the labelled images of a .rec file (or a folder that has one), an image folder, or a list file.

    `options`: keys of all image formats, see plsc.data.images.EncodedImages; also `root`, which only a list
    takes.
    """
    root = options.pop("root", "")
    kind = kind_of(path)
    if root and kind is not ImageList:
        raise UserError(f"only a list of images has one, and {path} is none", key="root")
    if kind is RecImages and os.path.isdir(path):
        path = _records_in(path)[0]
    if kind is ImageList:
        return ImageList(path, root=root, **options)
    return kind(path, **options)


def open_any(path: str, **options) -> EncodedImages | EncodedPairs:
    """Open what `open_images` opens, or a verification pack."""
    return BinPairs(path, **options) if path.endswith(".bin") else open_images(path, **options)


def kind_of(path: str) -> type[EncodedImages]:
    """Return the class that reads the labelled images of `path`."""
    if not os.path.exists(path):
        raise MissingFileError(f"'{path}' does not exist (looked in {Path.cwd()})")
    return _folders_kind(path) if os.path.isdir(path) else _files_kind(path)


def _folders_kind(path: str) -> type[EncodedImages]:
    if _records_in(path):
        return RecImages
    entries = [entry for entry in os.scandir(path) if entry.name[0] != "."]
    if not entries:
        raise UserError(f"{path}: is empty; give a folder with a folder for each identity, or with a .rec")
    if any(entry.is_dir() for entry in entries):
        return ImageFolder
    if any(entry.name.lower().endswith(EXTENSIONS) for entry in entries):
        raise UserError(
            f"{path}: has images, but none in a folder of its identity; make a folder for each identity"
        )
    if any(entry.name.lower().endswith(UNREAD) for entry in entries):
        kinds = sorted({Path(entry.name).suffix.lower() for entry in entries})
        raise UserError(
            f"{path}: has files that are not read ({', '.join(kinds)}); convert the images to .png or "
            ".jpg, and make a "
            "folder for each identity"
        )
    raise UserError(f"{path}: has no images; give a folder with a folder for each identity, or with a .rec")


def _records_in(folder: str) -> list[str]:
    files = sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".rec"))
    if len(files) > 1:
        raise UserError(f"{folder}: has {len(files)} .rec files; name one of them")
    return files


def _files_kind(path: str) -> type[EncodedImages]:
    with open_regular(path) as file:
        start = file.read(4096)
    if start.startswith(struct.pack("<I", MAGIC)) or path.endswith(".rec"):
        return RecImages
    if b"\0" in start:
        raise UserError(f"{path}: is neither a .rec file nor text; give a .rec, a list of images or a folder")
    return ImageList
