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
    return samples_to_predict([image], WANTED)[0](0, 1)


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


def test_an_image_without_a_png_is_refused_in_one_line():
    line = refusal(sample, Image.fromarray(PIXELS[:, :, 0].astype(np.float32)))
    assert line == "predict: image 0: cannot write mode F as PNG; convert it to RGB"


def test_a_truncated_file_opened_by_pillow_is_named(tmp_path):
    Image.fromarray(PIXELS).save(tmp_path / "a.bmp")
    data = (tmp_path / "a.bmp").read_bytes()
    (tmp_path / "a.bmp").write_bytes(data[:-40])
    with Image.open(tmp_path / "a.bmp") as opened:
        assert refusal(sample, opened).startswith("predict: image 0: image file is truncated")
