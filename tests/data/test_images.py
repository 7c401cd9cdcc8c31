import cv2
import numpy as np
import pytest

from plsc.data.dataset import preprocessing
from plsc.data.images import load_image
from plsc.data.lists import ImageList
from plsc.errors import CorruptImageError, MissingFileError, UserError


@pytest.fixture
def folder(tmp_path):
    """Three images of 12 x 16 (height x width), red at the left and green at the right; and one file that is
    none."""
    picture = np.zeros((12, 16, 3), np.uint8)
    picture[:, :8, 2] = 255  # OpenCV writes BGR
    picture[:, 8:, 1] = 255
    for name in ("a.png", "b c.png", "ä.png"):
        (tmp_path / name).write_bytes(cv2.imencode(".png", picture)[1].tobytes())
    (tmp_path / "broken.jpg").write_bytes(b"not an image")
    return tmp_path


def write(folder, text):
    path = folder / "list.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_a_missing_image_is_named(folder):
    with pytest.raises(MissingFileError, match=r"x.png: no such image$"):
        load_image(str(folder / "x.png"), preprocessing((3, 8, 8)))


def test_an_image_that_cannot_be_decoded_is_named(folder):
    (folder / "empty.png").write_bytes(b"")
    for name, size in (("broken.jpg", 12), ("empty.png", 0)):
        with pytest.raises(
            CorruptImageError, match=rf"{name}: not an image that OpenCV can decode \({size} bytes\)"
        ):
            load_image(str(folder / name), preprocessing((3, 8, 8)))
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        load_image(str(folder), preprocessing((3, 8, 8)))


def test_an_image_follows_the_contract(folder):
    path = str(folder / "ä.png")
    whole = load_image(path, preprocessing((3, 12, 16)))
    assert whole.shape == (3, 12, 16) and whole.dtype == np.uint8 and whole.flags.c_contiguous
    assert whole[:, 0, 0].tolist() == [255, 0, 0] and whole[:, 0, 15].tolist() == [0, 255, 0]
    half = load_image(path, preprocessing((3, 6, 8)))
    assert np.array_equal(half, whole[:, ::2, ::2])
    grey = load_image(path, preprocessing((1, 24, 32)))
    assert grey.shape == (1, 24, 32) and grey[0, 0, 0] == 76  # 0.299 of 255
    blue_first = load_image(path, preprocessing((3, 12, 16), channels="BGR"))
    assert np.array_equal(blue_first, whole[::-1])


def test_mean_and_scale_are_in_the_contract(folder):
    data = ImageList(write(folder, "a.png\t0\n"), size=(12, 16), channels="BGR", mean=127.5, scale=1 / 128)
    assert data.contract == {"size": [12, 16], "channels": "BGR", "mean": 127.5, "scale": 1 / 128}


def test_flip_mirrors_about_half_anew_each_epoch(folder):
    data = ImageList(write(folder, "a.png\t0\n" * 40), size=(12, 16), flip=True)
    plain = load_image(str(folder / "a.png"), data.contract)
    mirrored = [
        [np.array_equal(data.sample(i, epoch), plain[:, :, ::-1]) for i in range(40)] for epoch in (0, 1)
    ]
    for index, flipped in enumerate(mirrored[0]):
        assert flipped or np.array_equal(data.sample(index, 0), plain)
    assert 8 < sum(mirrored[0]) < 32 and mirrored[0] != mirrored[1]


def test_wrong_arguments_are_named(folder):
    with pytest.raises(UserError, match=r"^size: must be \[height, width\] of at least 1, got \[0, 16\]$"):
        ImageList.check(size=(0, 16))
    with pytest.raises(UserError, match="^channels: must be one of RGB, BGR, grey, got 'YUV'$"):
        ImageList.check(channels="YUV")
    with pytest.raises(UserError, match="^scale: must be more than 0, got 0$"):
        ImageList.check(scale=0)
