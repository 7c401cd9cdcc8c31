"""Each augmentation against a slow reference or a property. All are reproducible and within their ranges."""

import cv2
import numpy as np
import pytest

from plsc.data.augment import CUTOUT, LUMA, PAINT, Augment, recolour
from plsc.data.image_list import ImageList
from plsc.data.loader import Loader
from plsc.data.transforms import generator

HEIGHT, WIDTH = 48, 40
RNG = np.random.default_rng(0)
NOISE = RNG.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
SMOOTH = cv2.resize(
    RNG.integers(60, 196, (5, 5, 3), np.uint8), (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC
)
GREY = cv2.cvtColor(SMOOTH, cv2.COLOR_BGR2GRAY)
EACH = [
    {"flip": True}, {"crop": 0.3}, {"colour": 0.4}, {"low_resolution": 1.0}, {"cutout": 1.0},
]  # fmt: skip


def made(picture, count=40, **strengths):
    """`count` pictures, each of its own stream."""
    augment = Augment(**strengths)
    return [augment(picture, generator(0, 0, index)) for index in range(count)]


# ---- all of them


def test_off_changes_nothing():
    assert Augment()(NOISE, generator(0)) is NOISE and Augment()(GREY, generator(0)) is GREY


@pytest.mark.parametrize("strengths", EACH, ids=lambda strengths: next(iter(strengths)))
@pytest.mark.parametrize("picture", [NOISE, GREY], ids=["colour", "grey"])
def test_shape_and_dtype_stay_and_the_original_too(strengths, picture):
    before = picture.copy()
    found = made(picture, **strengths)
    assert all(one.shape == picture.shape and one.dtype == np.uint8 for one in found)
    assert np.array_equal(picture, before)
    assert any(not np.array_equal(one, picture) for one in found)


def test_one_key_does_not_change_what_another_draws():
    alone, beside = made(NOISE, flip=True), made(NOISE, flip=True, cutout=1.0)
    for first, second in zip(alone, beside):
        kept = np.all(first == second, axis=2)
        assert 0.75 < kept.mean() < 1 and np.all(second[~kept] == PAINT)


@pytest.mark.parametrize("key", ["low_resolution", "cutout", "flip"])
def test_a_probability_is_the_share_of_changed_pictures(key):
    changed = [
        not np.array_equal(one, NOISE) for one in made(NOISE, 400, **{key: 0.5 if key != "flip" else True})
    ]
    assert 0.4 < np.mean(changed) < 0.6  # 4 standard deviations


@pytest.mark.parametrize("num_workers", [0, 2])
def test_processes_change_no_bit_and_epochs_do(tmp_path, num_workers):
    lines = []
    for number in range(12):
        cv2.imwrite(str(tmp_path / f"{number}.png"), np.roll(NOISE, number, axis=0))
        lines.append(f"{number}.png\t{number // 2}\n")
    (tmp_path / "list.txt").write_text("".join(lines))
    keys = {"flip": True, "crop": 0.2, "colour": 0.3, "cutout": 0.5}
    data = ImageList(str(tmp_path / "list.txt"), size=(32, 32), seed=3, low_resolution=0.3, **keys)
    loader = Loader(data, 4, rank=0, world_size=1, seed=5, num_workers=num_workers)
    for epoch in (0, 1):
        for images, _, indices, *_ in loader.from_step(epoch * loader.steps_per_epoch):
            for image, index in zip(images, indices.tolist()):
                assert np.array_equal(image, data.sample(index, epoch))
                assert not np.array_equal(image, data.sample(index, epoch + 1))


# ---- geometry


def test_flip_mirrors_exactly():
    for one in made(NOISE, flip=True):
        assert np.array_equal(one, NOISE) or np.array_equal(one, NOISE[:, ::-1])


def test_a_crop_is_a_part_of_the_picture():
    """On a ramp, each picture is the straight line between the window's ends, with nothing from beyond."""
    ramp = np.broadcast_to(np.linspace(0, 234, WIDTH), (HEIGHT, WIDTH)).astype(np.uint8)  # 6 a pixel
    shares, lefts = [], []
    for one in made(ramp, 100, crop=0.3):
        slope = (float(one[20, -3]) - one[20, 2]) / (WIDTH - 5) / 6
        shares.append(slope)
        lefts.append(
            (one[20, 2] / 6 + 0.5 - 2.5 * slope) / WIDTH
        )  # the window's left edge in shares of the width
    assert 0.69 < min(shares) < 0.73 and 0.97 < max(shares) < 1.01
    assert min(lefts) > -0.01 and max(np.add(lefts, shares)) < 1.01
    assert max(lefts) > 0.2 and min(np.add(lefts, shares)) < 0.8


# ---- colour


def test_recolour_equals_the_three_steps_in_floating_point():
    for brightness, contrast, saturation in (
        (1.2, 1, 1),
        (1, 0.6, 1),
        (1, 1, 0.5),
        (0.9, 1.3, 1.2),
        (1, 1, 0),
    ):
        expected = SMOOTH * brightness
        expected = (expected - (expected @ LUMA).mean()) * contrast + (expected @ LUMA).mean()
        grey = (expected @ LUMA)[:, :, None]
        expected = np.clip((expected - grey) * saturation + grey, 0, 255)
        assert np.abs(recolour(SMOOTH, brightness, contrast, saturation) - expected).max() < 1
    expected = np.clip((GREY * 1.1 - (GREY * 1.1).mean()) * 0.7 + (GREY * 1.1).mean(), 0, 255)
    assert np.abs(recolour(GREY, 1.1, 0.7) - expected).max() < 1
    assert np.array_equal(recolour(NOISE), NOISE)


def test_colour_stays_within_its_factors():
    means = [one.mean() / SMOOTH.mean() for one in made(SMOOTH, 200, colour=0.3)]
    assert 0.69 < min(means) < 0.75 and 1.25 < max(means) < 1.31


# ---- detail


def test_low_resolution_takes_detail_not_light():
    for one in made(NOISE, low_resolution=1.0):
        assert abs(one.mean() - NOISE.mean()) < 4 and one.std() <= NOISE.std()
    assert min(one.std() for one in made(NOISE, 100, low_resolution=1.0)) < 0.4 * NOISE.std()


def test_cutout_paints_one_rectangle():
    white = np.full((HEIGHT, WIDTH, 3), 255, np.uint8)
    corners = []
    for one in made(white, 300, cutout=1.0):
        rows, columns = np.nonzero(one[:, :, 0] == PAINT)
        top, bottom, left, right = rows.min(), rows.max() + 1, columns.min(), columns.max() + 1
        assert np.all(one[top:bottom, left:right] == PAINT) and np.sum(one == PAINT) == 3 * len(rows)
        assert CUTOUT[0] * HEIGHT - 1 < bottom - top < CUTOUT[1] * HEIGHT + 1
        assert CUTOUT[0] * WIDTH - 1 < right - left < CUTOUT[1] * WIDTH + 1
        corners.append([top, HEIGHT - bottom, left, WIDTH - right])
    assert np.min(corners, axis=0).tolist() == [0, 0, 0, 0]  # it reaches each edge
