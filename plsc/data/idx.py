"""Read the MNIST family's idx files (MNIST, Fashion-MNIST, KMNIST, ...), plain or as .gz.

A big-endian header comes before the bytes. The header contains two zero bytes, the type 0x08
(uint8), the axis count, and each axis's length. http://yann.lecun.com/exdb/mnist describes the format. Try
it:

    read_idx("train-images-idx3-ubyte.gz", axes=3).shape    # (60000, 28, 28)
"""

import gzip
import math
import os
import zlib
from pathlib import Path

import numpy as np

from plsc.data.dataset import Dataset, count_classes
from plsc.errors import UserError, escape, reading
from plsc.utils.files import read_regular


def read_idx(path: str | os.PathLike, axes: int) -> np.ndarray:
    """Read the array in an idx file of bytes: uint8, read-only.

    Args:
        path: the file, plain or .gz.
        axes: how many axes the array must have, 3 for images and 1 for labels.

    Raises MissingFileError if the file does not exist, and UserError if it is damaged, truncated or of
    another kind.
    """
    with reading(path):
        data = read_regular(path)
    try:
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{escape(path)}: is a damaged or truncated .gz ({error}); fetch it again") from error
    magic, header = int.from_bytes(data[:4], "big"), 4 + 4 * axes
    if len(data) < header or magic != 0x0800 + axes:
        kind = "labels" if axes == 1 else "images"
        raise UserError(
            f"{path}: is not an idx file of {kind}: it begins with {magic:#010x}, must be "
            f"{0x0800 + axes:#010x}"
        )
    shape = np.frombuffer(data, ">u4", axes, offset=4).tolist()
    if len(data) - header != math.prod(shape):
        raise UserError(
            f"{path}: has {len(data) - header:,} bytes after its header, which promises "
            f"{' x '.join(map(str, shape))}; is it truncated? fetch it again"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


class IdxImages(Dataset):
    """Grey images and their labels from two idx files. The network's input is pixel / 255.

    - `images`, `labels`: the files, plain or .gz.
    """

    files = ("images", "labels")
    mean, scale = 0.0, 1 / 255  # the network's input is in [0, 1]

    def __init__(self, images: str, labels: str):
        pixels = read_idx(images, axes=3)
        self.labels = read_idx(labels, axes=1).astype(np.int64)
        if len(pixels) != len(self.labels) or not pixels.size:
            raise UserError(
                f"{images} has {len(pixels):,} images, {labels} {len(self.labels):,} labels; "
                "give two files that belong together and are not empty"
            )
        self.num_classes = count_classes(self.labels, labels)
        self.image_shape = (1, *pixels.shape[1:])
        self._pixels = pixels[:, np.newaxis]
        self.title = Path(images).name

    def sample(self, index: int, epoch: int) -> np.ndarray:
        return self._pixels[index]
