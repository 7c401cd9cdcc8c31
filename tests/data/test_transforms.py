import itertools

import numpy as np

from plsc.data.transforms import ORDER, SAMPLES, distort, generator, resize

INK = np.zeros((48, 48), np.uint8)
INK[12:36, 18:30] = 255


def test_every_sample_has_its_own_stream():
    keys = itertools.product((0, 1, 2**64 - 1), (0, 1), (0, 1, 2**40), (SAMPLES, ORDER))
    first = [generator(*key).random() for key in keys]
    assert len(set(first)) == 36
    assert generator(5, 1, 2).random() == generator(5, 1, 2).random()


def test_numbers_are_the_same_with_every_numpy():
    # A resumed run, and verification pairs, must not change with the library.
    assert generator(7, 3, 11).integers(0, 1000, 4).tolist() == [444, 423, 954, 804]
    assert generator(7, 3, use=ORDER).permutation(8).tolist() == [5, 1, 3, 7, 2, 6, 4, 0]


def test_strength_0_is_the_clean_picture():
    picture = distort(INK, 32, 0.0, generator(0))
    assert picture.shape == (32, 32) and picture.dtype == np.uint8
    assert np.all(picture[9:23, 13:19] == 0)
    assert np.all(picture[:7] == 255) and np.all(picture[:, :11] == 255)
    rows, columns = np.nonzero(picture < 128)
    assert rows.mean() == 15.5 and columns.mean() == 15.5


def test_distortion_varies_and_grows_with_strength():
    def spread(strength):
        return np.std(
            [distort(INK, 32, strength, generator(0, 0, i)).astype(float) for i in range(50)], axis=0
        ).mean()

    assert 0 < spread(0.3) < spread(0.6) < spread(1.0)
    again = [distort(INK, 32, 1.0, generator(0, 0, 1)) for _ in range(2)]
    assert np.array_equal(*again)


def test_distorted_ink_stays_where_it_can_be_read():
    for index in range(100):
        picture = distort(INK, 32, 1.0, generator(1, 0, index)).astype(float)
        assert picture[14:18, 14:18].mean() < picture[:, :4].mean() - 40


def test_resize_averages_to_shrink_and_interpolates_to_enlarge():
    checks = np.indices((8, 8)).sum(0) % 2 * 200
    checks = checks.astype(np.uint8)
    assert np.all(resize(checks, 4, 4) == 100)
    assert resize(checks, 8, 8) is checks
    enlarged = resize(np.array([[0, 100]], np.uint8), 1, 4)
    assert enlarged.tolist() == [[0, 25, 75, 100]]
    assert resize(np.zeros((5, 7, 3), np.uint8), 4, 9).shape == (4, 9, 3)
