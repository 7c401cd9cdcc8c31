import struct
import zlib

import cv2
import numpy as np
import pytest

from plsc.config import ConfigError, load
from plsc.data.image_list import ImageList
from plsc.data.images import decode_pixels, read_sample
from plsc.errors import CorruptImageError, MissingFileError
from plsc.utils.preprocessing import Preprocessing
from tests.helpers.datasets import dataset_of
from tests.helpers.image_files import write_list
from tests.helpers.refusals import refusal


def test_an_image_that_is_missing_or_cannot_be_decoded_is_named(folder):
    assert refusal(
        read_sample, str(folder / "x.png"), Preprocessing((3, 8, 8)), kind=MissingFileError
    ).endswith("x.png: no such image")
    (folder / "empty.png").write_bytes(b"")
    for name, size in (("broken.jpg", 12), ("empty.png", 0)):
        assert f"{name}: not an image that OpenCV can decode ({size} bytes)" in refusal(
            read_sample, str(folder / name), Preprocessing((3, 8, 8)), kind=CorruptImageError
        )
    assert "is a folder; name the pictures in it" in refusal(
        read_sample, str(folder), Preprocessing((3, 8, 8))
    )


@pytest.mark.parametrize("kind", [".png", ".jpg"])
def test_an_image_that_promises_a_billion_pixels_is_corrupt(folder, kind):
    """By its header: nothing is decoded, whatever it holds."""
    data = bytearray(cv2.imencode(kind, np.zeros((12, 16), np.uint8))[1].tobytes())
    many = 40_000
    if kind == ".png":
        data[16:24] = struct.pack(">II", many, many)
        data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    else:
        at = data.index(b"\xff\xc0") + 5
        data[at : at + 4] = struct.pack(">HH", many, many)
    (folder / f"bomb{kind}").write_bytes(data)
    said = refusal(read_sample, str(folder / f"bomb{kind}"), Preprocessing((3, 8, 8)), kind=CorruptImageError)
    assert f"bomb{kind}: not an image" in said
    assert said.endswith("it has 40,000 x 40,000 pixels, at most 67,108,864 are read; make it smaller")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "the file is empty"),
        (
            cv2.imencode(".jpg", np.zeros((12, 16), np.uint8))[1].tobytes()[:40],
            "JPEG is truncated or damaged",
        ),
        (cv2.imencode(".png", np.zeros((12, 16), np.uint8))[1].tobytes()[:40], "PNG is truncated or damaged"),
        (b"RIFF\x20\0\0\0WEBPVP8 ", "WebP is truncated or damaged"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "cannot read it; convert it to JPEG or PNG"),
        (b"GIF89a", f"this GIF is truncated or damaged, or OpenCV {cv2.__version__} does not read GIF"),
        (b"path,label\n", "it does not begin as JPEG, PNG, WebP, BMP, TIFF, GIF do"),
    ],
)
def test_why_an_image_cannot_be_decoded(data, why):
    bytes_of = np.frombuffer(data, np.uint8)
    said = refusal(decode_pixels, bytes_of, False, lambda: "a.jpg", kind=CorruptImageError)
    assert (
        said == f"a.jpg: not an image that OpenCV can decode ({len(data)} bytes); {said.partition('; ')[2]}"
    )
    assert said.endswith(why)


def test_an_image_follows_the_preprocessing(folder):
    path = str(folder / "ä.png")
    whole = read_sample(path, Preprocessing((3, 12, 16)))
    assert whole.shape == (3, 12, 16) and whole.dtype == np.uint8 and whole.flags.c_contiguous
    assert whole[:, 0, 0].tolist() == [255, 0, 0] and whole[:, 0, 15].tolist() == [0, 255, 0]
    half = read_sample(path, Preprocessing((3, 6, 8)))
    assert np.array_equal(half, whole[:, ::2, ::2])
    grey = read_sample(path, Preprocessing((1, 24, 32)))
    assert grey.shape == (1, 24, 32) and grey[0, 0, 0] == 76  # 0.299 of 255
    blue_first = read_sample(path, Preprocessing((3, 12, 16), channels="BGR"))
    assert np.array_equal(blue_first, whole[::-1])


def test_mean_and_scale_are_in_the_preprocessing(folder):
    data = ImageList(
        write_list(folder, "a.png\t0\n"), size=(12, 16), channels="BGR", mean=127.5, scale=1 / 128
    )
    assert data.preprocessing == Preprocessing((3, 12, 16), 127.5, 1 / 128, "BGR")


@pytest.mark.parametrize(
    "key, rule",
    [
        ("size: [0, 16]", "size.0: must be greater than or equal to 1 (got 0)"),
        ("size: [16, 9999]", "size.1: must be less than or equal to 8192 (got 9999)"),
        ("scale: 0", "scale: must be greater than 0 (got 0)"),
        ("crop: 1", "crop: must be less than 1 (got 1)"),
        ("cutout: 1.5", "cutout: must be less than or equal to 1 (got 1.5)"),
        ("hold_out: 1", "hold_out: must be less than 1 (got 1)"),
    ],
)
def test_wrong_arguments_are_named(key, rule):
    with pytest.raises(ConfigError) as raised:
        load(None, f"DataLoader.Train.dataset={{name: ImageList, list: a.txt, {key}}}")
    wrong, missing = str(raised.value).splitlines()
    assert wrong.endswith(f"DataLoader.Train.dataset.{rule}")
    assert ": DataLoader.Train.dataset.list: file 'a.txt' does not exist (looked in " in missing


def test_an_integer_is_both_sides(folder):
    path = write_list(folder, "a.png\t0\nb c.png\t1\n")
    assert ImageList(path, size=9).image_shape == ImageList(path, size=(9, 9)).image_shape == (3, 9, 9)
    key = "DataLoader.Train.dataset={name: ImageList, list: %s, size: %s}"
    assert dataset_of(load(None, [key % (path, 9)])).image_shape == (3, 9, 9)
    for size, other in (("[32]", "a longer list"), ("[1, 2, 3]", ""), ("large", "a list")):
        assert f".size: must be a valid integer or {other}" in refusal(load, None, key % (path, size))
