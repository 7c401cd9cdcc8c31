"""What samples_to_predict makes from Pillow's images. tests/test_entry.py has paths, folders and arrays."""

import numpy as np
import pytest
from PIL import Image

from plsc.data.to_predict import samples_to_predict
from plsc.utils.preprocessing import Preprocessing
from tests.helpers.refusals import refusal

PIXELS = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)
WANTED = Preprocessing((3, 9, 7))


def sample(image):
    read, _, unread = samples_to_predict([image], WANTED)
    (pixels,) = read(0, 1)
    assert not unread
    return pixels[np.newaxis]


def reason(image):
    """Return why an image cannot be read. Its sample is zero."""
    read, _, unread = samples_to_predict([image], WANTED)
    assert not read(0, 1).any()
    return unread.pop(0)


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_an_image_and_its_file_are_turned_alike(tmp_path, orientation):
    image = Image.fromarray(PIXELS)
    exif = image.getexif()
    exif[0x0112] = orientation
    image.save(tmp_path / "a.jpg", exif=exif, quality=100, subsampling=0)
    with Image.open(tmp_path / "a.jpg") as opened:
        difference = sample(opened).astype(int) - sample(tmp_path / "a.jpg")
    assert np.abs(difference).max() <= 4  # two decoders of JPEG round differently


@pytest.mark.parametrize("mode, bound", [("RGBA", 0), ("CMYK", 0), ("HSV", 16), ("YCbCr", 4)])
def test_modes_with_colours_are_converted(mode, bound):
    image = Image.fromarray(PIXELS)
    difference = sample(image.convert(mode)).astype(int) - sample(image)
    assert np.abs(difference).max() <= bound


def test_an_image_without_a_png_has_a_reason_in_one_line():
    line = reason(Image.fromarray(PIXELS[:, :, 0].astype(np.float32)))
    assert line == "predict: image 0: cannot write mode F as PNG; convert it to RGB"


def test_a_truncated_file_opened_by_pillow_is_named(tmp_path):
    Image.fromarray(PIXELS).save(tmp_path / "a.bmp")
    data = (tmp_path / "a.bmp").read_bytes()
    (tmp_path / "a.bmp").write_bytes(data[:-40])
    with Image.open(tmp_path / "a.bmp") as opened:
        assert reason(opened).startswith("predict: image 0: image file is truncated")


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv", "a.lst", "list"])
def test_a_text_file_is_a_list_whatever_its_ending(tmp_path, name):
    (tmp_path / name).write_text("b.png\nc.png\t3\n")
    assert samples_to_predict(tmp_path / name, WANTED)[1] == [f"{tmp_path}/b.png", f"{tmp_path}/c.png"]


@pytest.mark.parametrize(
    "name, data", [("a.jpg", b"<html>"), ("b.heic", b"\0\0\0\x18ftypheic"), ("c", b"\0")]
)
def test_a_damaged_picture_is_no_list(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    read, names, unread = samples_to_predict(str(tmp_path / name), WANTED)
    assert names == [f"{tmp_path}/{name}"] and not read(0, 1).any()
    assert unread[0].startswith(f"{tmp_path}/{name}: not an image that OpenCV can decode")


@pytest.mark.parametrize("value", [0, 65])  # zeros are no text, the letter A is
def test_a_file_with_an_array_is_refused(tmp_path, value):
    path = tmp_path / "x.npy"
    np.save(path, np.full((200, 64), value, np.uint8))
    assert refusal(samples_to_predict, str(path), Preprocessing((1, 8, 8))) == (
        f"predict: {path} is a NumPy array; give images, a folder, or a list of images. In "
        "Python, Entry.predict takes the array itself, uint8 [n, C, H, W], as numpy.load returns it"
    )
