"""Detect the format of a path: `open_images("train.rec")`, `open_images("faces/")`,
`open_images("label.txt")`."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

from plsc.data.bin_packs import BinPairs
from plsc.data.folder import ARRAYS, EXTENSIONS, UNREAD, ImageFolder
from plsc.data.image_list import ImageList
from plsc.data.images import EncodedImages, EncodedPairs
from plsc.data.rec import RecImages
from plsc.data.recordio import MAGIC
from plsc.data.remote_shards import is_url
from plsc.data.shards import Shards
from plsc.errors import MissingFileError, UserError
from plsc.utils.files import open_regular

_SHORTEST_BASE64 = 64  # characters; no image is smaller, and few paths are longer
_BASE64 = re.compile(rb"[A-Za-z0-9+/]*={0,2}")


def open_images(path: str, **options) -> EncodedImages:
    """Open the labelled images of a .rec file (or a folder that has one), an image folder, tar shards, or a
    list file.

    `options`: keys of all image formats, see plsc.data.images.EncodedImages; also `root`, which only a list
    takes, and `cache`, which only shards on a server do.
    """
    root = options.pop("root", "")
    kind = kind_of(path)
    if kind is not Shards and options.pop("cache", None):
        raise UserError(f"cache: only shards on a server have one, and {path} is none")
    if kind is None:
        raise UserError(f"{path}: has base64 parts, which are converted first: plsc convert {path} NAME.rec")
    if root and kind is not ImageList:
        raise UserError(f"root: only a list of images has one, and {path} is none")
    if kind is RecImages and os.path.isdir(path):
        path = _records_in(path)[0]
    if kind is ImageList:
        return ImageList(path, root=root, **options)
    return kind(path, **options)


def open_any(path: str, **options) -> EncodedImages | EncodedPairs:
    """Open what `open_images` opens, or a verification pack."""
    return BinPairs(path, **options) if path.endswith(".bin") else open_images(path, **options)


def kind_of(path: str) -> type[EncodedImages] | None:
    """Return the class that reads the labelled images of `path`; None: they are base64 parts, which none
    reads."""
    if is_url(path):
        return Shards
    if not os.path.exists(path):
        raise MissingFileError(f"'{path}' does not exist (looked in {Path.cwd()})")
    return _folders_kind(path) if os.path.isdir(path) else _files_kind(path)


def _folders_kind(path: str) -> type[EncodedImages] | None:
    if _records_in(path):
        return RecImages
    if any(name.endswith(".tar") for name in os.listdir(path)):
        return Shards
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
            f"{path}: has files that are not read ({', '.join(kinds)}); convert the images to .png or .jpg, and make a "
            "folder for each identity"
        )
    if _files_kind(min(entry.path for entry in entries)) is not None:
        raise UserError(
            f"{path}: has no images; give a folder with a folder for each identity, or with a .rec"
        )
    return None


def _records_in(folder: str) -> list[str]:
    files = sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".rec"))
    if len(files) > 1:
        raise UserError(f"{folder}: has {len(files)} .rec files; name one of them")
    return files


def _files_kind(path: str) -> type[EncodedImages] | None:
    if path.endswith(".tar"):
        return Shards
    with open_regular(path) as file:
        line = file.readline(2**20).removeprefix(b"\xef\xbb\xbf")
        start = line + file.read(4096)
    if start.startswith(struct.pack("<I", MAGIC)) or path.endswith(".rec"):
        return RecImages
    if path.endswith(".parquet"):
        raise UserError(f"{path}: is Parquet, which is converted first: plsc convert {path} NAME --to shards")
    if path.endswith(ARRAYS):
        raise UserError(
            f"{path}: is an array, no images; a config names it, dataset: {{name: Arrays, samples: ..., labels: ...}} (docs/data.md)"
        )
    if b"\0" in start:
        raise UserError(f"{path}: is neither a .rec file nor text; give a .rec, a list of images or a folder")
    return None if len(line) > _SHORTEST_BASE64 and label_is_first(line) is not None else ImageList


def label_is_first(line: bytes) -> bool | None:
    """Say whether a line of base64 parts is `label<TAB>base64`; None if it has neither order."""
    first, tab, second = line.strip(b"\r\n").partition(b"\t")
    if not tab or not first or not second or b"\t" in second:
        return None
    # "1234" is good base64 too, but no image is shorter than its label.
    label, data = (first, second) if len(first) < len(second) else (second, first)
    return label is first if label.isdigit() and _BASE64.fullmatch(data) else None
