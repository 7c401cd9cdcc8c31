"""Pictures from programs: arrays and images of Pillow, beside files."""

import cv2
import numpy as np
import pytest

from plsc.apps.faces.photos import as_pictures, picture_name, read_photo
from plsc.errors import UserError
from tests.helpers.refusals import refusal

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
GREY = PIXELS[:, :, 0]


def test_arrays_are_pictures_in_the_order_bgr():
    assert np.array_equal(read_photo(PIXELS), PIXELS)
    assert read_photo(PIXELS[:, ::-1]).flags.c_contiguous
    three = np.repeat(GREY[:, :, np.newaxis], 3, axis=2)
    for grey in (GREY, GREY[:, :, np.newaxis]):
        assert np.array_equal(read_photo(grey), three)
    with_alpha = np.dstack([PIXELS, GREY])
    assert np.array_equal(read_photo(with_alpha), PIXELS)


@pytest.mark.parametrize(
    "array",
    [
        PIXELS.astype(np.float32),
        PIXELS.astype(np.uint16),
        PIXELS[:0],
        PIXELS[:, :, :2],
        PIXELS[0, :, 0],
        PIXELS[None],
    ],
)
def test_other_arrays_are_refused(array):
    text = refusal(read_photo, array)
    assert f"is {array.dtype} [" in text and "uint8 [H, W, 3], in the order BGR" in text


def test_what_is_no_picture_is_refused():
    assert refusal(read_photo, 3) == (
        "int: is not a picture; give a path, a file's bytes, an array or a Pillow image"
    )
    several = [PIXELS]
    assert as_pictures(several) == several
    assert all(as_pictures(single) == [single] for single in ("a.jpg", b"x"))
    (pixels,) = as_pictures(PIXELS)
    assert pixels is PIXELS


def test_images_of_pillow():
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    rgb = image.fromarray(PIXELS[:, :, ::-1].copy())
    assert as_pictures(rgb) == [rgb] and np.array_equal(read_photo(rgb), PIXELS)
    assert np.array_equal(read_photo(rgb.convert("RGBA")), PIXELS)
    grey = read_photo(image.fromarray(GREY))
    assert np.array_equal(grey, np.repeat(GREY[:, :, np.newaxis], 3, axis=2))
    rgb.getexif()[0x0112] = 3  # upside down
    assert np.array_equal(read_photo(rgb), PIXELS[::-1, ::-1])
    deep = image.fromarray(GREY.astype(np.uint16) * 257)  # Pillow's own conversion would cut it at 255
    assert np.array_equal(read_photo(deep), grey)
    with pytest.raises(UserError, match="float32"):
        read_photo(image.fromarray(GREY.astype(np.float32)))


def test_messages_call_a_picture_by_its_name(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    cv2.imwrite(str(tmp_path / "a.png"), PIXELS)
    with image.open(tmp_path / "a.png") as opened:
        assert picture_name(opened) == picture_name(tmp_path / "a.png") == str(tmp_path / "a.png")
    assert picture_name(b"x") == picture_name(PIXELS) == "the picture"
