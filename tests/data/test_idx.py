"""idx files: what is read, and one line for each way in which they can be wrong."""

import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pytest

from plsc.config import load
from plsc.data.idx import IdxImages, read_idx
from plsc.errors import MissingFileError
from plsc.utils.preprocessing import Preprocessing
from tests.helpers.idx_files import DATA, NAMES, needs_fashion_mnist, write_idx
from tests.helpers.refusals import refusal

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 3, 5), np.uint8)
LABELS = np.array([2, 0, 1, 1], np.uint8)


@pytest.fixture
def files(tmp_path):
    return [str(write_idx(tmp_path / "images", PIXELS)), str(write_idx(tmp_path / "labels", LABELS))]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_images_and_labels_plain_or_compressed(suffix, tmp_path):
    images = str(write_idx(tmp_path / f"images{suffix}", PIXELS))
    labels = str(write_idx(tmp_path / f"labels{suffix}", LABELS))
    data = IdxImages(images, labels)
    assert len(data) == 4 and data.num_classes == 3 and data.image_shape == (1, 3, 5)
    assert data.labels.dtype == np.int64 and data.labels.tolist() == [2, 0, 1, 1]
    assert data.sample(1, 7).dtype == np.uint8 and data.sample(1, 7).tobytes() == PIXELS[1].tobytes()
    assert data.images(1, 3).shape == (2, 1, 3, 5) and np.array_equal(data.images(1, 3)[:, 0], PIXELS[1:3])
    assert data.title == f"images{suffix}"
    assert data.preprocessing == Preprocessing((1, 3, 5), 0.0, 1 / 255), "numbers from 0 to 1"


def header(*numbers):
    return struct.pack(f">{len(numbers)}I", *numbers)


@pytest.mark.parametrize(
    "data, said",
    [
        (b"", "is not an idx file of images: it begins with 0x00000000, must be 0x00000803"),
        (header(0x803, 4, 3), "is not an idx file of images: it begins with 0x00000803, must be 0x00000803"),
        (header(0x801, 4) + bytes(60), "is not an idx file of images: it begins with 0x00000801, must be"),
        (b"\x89PNG" + bytes(60), "is not an idx file of images: it begins with 0x89504e47, must be"),
        (
            header(0x803, 4, 3, 5) + bytes(59),
            "has 59 bytes after its header, which promises 4 x 3 x 5; is it truncated? fetch",
        ),
        (header(0x803, *[2**32 - 1] * 3) + bytes(9), "which promises 4294967295 x 4294967295 x 4294967295"),
        (
            gzip.compress(header(0x803, 4, 3, 5) + bytes(60), mtime=0)[:-9],
            "is a damaged or truncated .gz (Compressed file ended before the end-of-stream",
        ),
        (gzip.compress(bytes(99), mtime=0)[:12] + b"\xff" * 40, "is a damaged or truncated .gz ("),
    ],
)
def test_a_file_that_is_not_whole_or_of_another_kind(data, said, files):
    Path(files[0]).write_bytes(data)
    line = refusal(IdxImages, *files)
    assert line.startswith(f"{files[0]}: ") and said in line


@pytest.mark.parametrize(
    "labels, said",
    [
        (
            [0, 1, 2],
            "{images} has 4 images, {labels} 3 labels; give two files that belong together and are not empty",
        ),
        (
            [1, 2, 3, 3],
            "{labels}: no image has label 0 (1 of the labels 0 to 3 are missing); number the classes",
        ),
    ],
)
def test_labels_that_do_not_fit(labels, said, files):
    write_idx(Path(files[1]), np.array(labels, np.uint8))
    assert refusal(IdxImages, *files).startswith(said.format(images=files[0], labels=files[1]))


def test_files_without_a_single_image(files):
    for path, empty in zip(files, (PIXELS[:0], LABELS[:0])):
        write_idx(Path(path), empty)
    assert refusal(IdxImages, *files) == (
        f"{files[0]} has 0 images, {files[1]} 0 labels; give two files that belong together and are not empty"
    )


def test_a_missing_file_is_named_with_its_key_before_anything_starts(files, tmp_path):
    keys = {"images": files[0], "labels": str(tmp_path / "nowhere")}
    cfg = load(None, [f"DataLoader.Train.dataset={json.dumps({'name': 'IdxImages', **keys})}"])
    assert refusal(cfg.check_data, kind=MissingFileError).endswith(
        f"DataLoader.Train.dataset.labels: file '{tmp_path}/nowhere' does not exist (looked in {Path.cwd()})"
    )
    assert "nowhere: no such file" in refusal(read_idx, tmp_path / "nowhere", kind=MissingFileError, axes=1)


@needs_fashion_mnist
def test_fashion_mnist():
    for part, count in (("train", 60_000), ("test", 10_000)):
        data = IdxImages(*(str(DATA / "fashion_mnist" / name) for name in NAMES[part]))
        assert len(data) == count and data.image_shape == (1, 28, 28) and data.num_classes == 10
        assert np.bincount(data.labels).tolist() == [count // 10] * 10
        assert data.images(0, 100).max() == 255 and data.images(0, 100).min() == 0
