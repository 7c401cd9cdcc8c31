"""Files of the MNIST family: the real Fashion-MNIST where it is, and small ones made up for a test."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from plsc.data.synthetic import Synthetic
from tests.helpers.launch import ROOT

# The folder that holds fashion_mnist/.
DATA = Path(os.environ.get("PLSC_TEST_DATA", ROOT.parent / "shared" / "data"))
NAMES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}

needs_fashion_mnist = pytest.mark.skipif(
    not all((DATA / "fashion_mnist" / name).is_file() for names in NAMES.values() for name in names),
    reason="needs the four .gz files of Fashion-MNIST in $PLSC_TEST_DATA/fashion_mnist",
)


def write_idx(path: Path, array: np.ndarray) -> Path:
    """Write a uint8 array as an idx file, or as a .gz if its name says so."""
    data = b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()
    path.write_bytes(gzip.compress(data, compresslevel=1) if path.suffix == ".gz" else data)
    return path


def write_family(folder: Path, train: int = 30, test: int = 10) -> Path:
    """Write four files with Fashion-MNIST's names: so many 28 x 28 pictures for each of 10 easy classes, in
    mixed order."""
    folder.mkdir(parents=True, exist_ok=True)
    source = Synthetic(num_classes=10, images_per_class=train + test, image_shape=(1, 28, 28), seed=5)
    shuffled = np.random.default_rng(5).permutation(len(source))
    number_in_class = shuffled % (train + test)
    for part, chosen in zip(
        ("train", "test"), (shuffled[number_in_class < train], shuffled[number_in_class >= train])
    ):
        images, labels = NAMES[part]
        write_idx(folder / images, np.stack([source.sample(index, 0)[0] for index in chosen.tolist()]))
        write_idx(folder / labels, source.labels[chosen].astype(np.uint8))
    return folder
