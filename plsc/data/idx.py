"""Read the idx files of the MNIST family (MNIST, Fashion-MNIST, KMNIST, ...), plain or as .gz.

A file is a big-endian header (two zero bytes, the type 0x08 of uint8, the number of axes, each axis' length)
and the bytes. The format is described on http://yann.lecun.com/exdb/mnist. Nothing is downloaded here; the
error of a missing file says how to have Paddle fetch MNIST and Fashion-MNIST. Try it:

    read_idx("train-images-idx3-ubyte.gz", axes=3).shape    # (60000, 28, 28)
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from plsc.data.dataset import Dataset
from plsc.errors import MissingFileError, UserError, reading, shown
from plsc.utils.files import open_regular

_MOST_RATIO = 100  # times a .gz's size that its images may have; of MNIST it is 5
_MOST_UNPACKED = 2**24  # bytes that a .gz may have whatever its size: sorted labels hardly take any

# Where Paddle's own download puts the files -> its class in paddle.vision.datasets.
_PADDLES = {"paddle/dataset/mnist": "MNIST", "paddle/dataset/fashion-mnist": "FashionMNIST"}


def read_idx(path: str | os.PathLike, axes: int) -> np.ndarray:
    """Read the array in an idx file of bytes: uint8 with `axes` axes, read-only; 3 for images, 1 for labels.

    Raises MissingFileError, and UserError for a file that is damaged, cut off, or of another kind.
    """
    with reading(path), open_regular(path) as file:
        try:
            data = _whole(file, axes)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(
                f"{shown(path)}: is a damaged or cut off .gz ({error}); fetch it again"
            ) from error
    magic, header = int.from_bytes(data[:4], "big"), 4 + 4 * axes
    if len(data) < header or magic != 0x0800 + axes:
        kind = {1: "labels", 3: "images"}.get(axes, f"bytes with {axes} axes")
        raise UserError(
            f"{path}: is no idx file of {kind}: it begins with {magic:#010x}, must be {0x0800 + axes:#010x}"
        )
    shape = np.frombuffer(data, ">u4", axes, offset=4).tolist()
    # A shape with a zero has no numbers, but numpy refuses one whose other sides are too large.
    if len(data) - header != math.prod(shape) or math.prod(max(side, 1) for side in shape) >= 2**62:
        raise UserError(
            f"{path}: has {len(data) - header:,} bytes after its header, which promises "
            f"{' x '.join(map(str, shape))}; cut off, or not whole? fetch it again"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _whole(file: BinaryIO, axes: int) -> bytes:
    """Read the bytes of the file, of a .gz unpacked: one more than its header promises, so that too many are
    noticed."""
    packed = file.read(2) == b"\x1f\x8b"
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if not packed:
        return file.read()
    with gzip.GzipFile(fileobj=file) as unpacked:
        header = unpacked.read(4 + 4 * axes)
        promised = math.prod(np.frombuffer(header[4 : len(header) // 4 * 4], ">u4").tolist())
        return header + unpacked.read(min(promised, max(_MOST_UNPACKED, _MOST_RATIO * size)) + 1)


class IdxImages(Dataset):
    """Grey images and their labels from two idx files, .gz or plain; the network's input is pixel / 255.

    `images`, `labels`: the files. `title`: what logs and reports call the set; empty = the name of the
    images' file.
    """

    mean, scale = 0.0, 1 / 255  # the network sees numbers from 0 to 1

    def __init__(self, images: str, labels: str, title: str = ""):
        self.check(images=images, labels=labels)
        pixels = read_idx(images, axes=3)
        self.labels = read_idx(labels, axes=1).astype(np.int64)
        if len(pixels) != len(self.labels) or not pixels.size:
            raise UserError(
                f"{images} has {len(pixels):,} images, {labels} {len(self.labels):,} labels; "
                "give two files that belong together and are not empty"
            )
        present = np.unique(self.labels)
        self.num_classes = len(present)
        if present[-1] != self.num_classes - 1:
            gap = int(np.argmax(present != np.arange(len(present))))
            raise UserError(
                f"{labels}: no image has label {gap}, but one has label {present[-1]}; "
                "the labels must be 0, 1, 2, ... without gaps"
            )
        self.image_shape = (1, *pixels.shape[1:])
        self._pixels = pixels[:, np.newaxis]
        self._title = title or Path(images).name

    @classmethod
    def check(cls, **kwargs) -> None:
        for key in kwargs.keys() & {"images", "labels"}:
            path = Path(kwargs[key])
            if not path.is_file():
                raise MissingFileError(
                    f"file '{path}' does not exist (looked in {Path.cwd()}){_remedy(path)}", key=key
                )

    @property
    def title(self) -> str:
        return self._title

    def sample(self, index: int, epoch: int) -> np.ndarray:
        return self._pixels[index]

    def images(self, start: int, stop: int) -> np.ndarray:
        return self._pixels[start:stop]


def _remedy(path: Path) -> str:
    """Suggest how to get a missing file, if it is one that Paddle downloads."""
    name = _PADDLES.get("/".join(path.parent.parts[-3:]))
    code = f'from paddle.vision.datasets import {name} as D; D(mode="train"); D(mode="test")'
    return f"; have Paddle download it: python -c '{code}'" if name else ""
