import cv2
import numpy as np
import pytest

from plsc.apps.curate.alignment import TEMPLATE, align, similarity_transform
from plsc.errors import UserError

RNG = np.random.default_rng(16)


def _faces(count):
    """Landmarks of faces that are turned, small and large, off the picture, and distorted."""
    for _ in range(count):
        angle, scale = RNG.uniform(-np.pi, np.pi), RNG.uniform(0.1, 40)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        yield (TEMPLATE + RNG.normal(0, 4, (5, 2))) @ turn * scale + RNG.uniform(-500, 500, 2)


def test_the_matrix_is_scikit_images():
    pytest.importorskip("skimage", minversion="0.26", reason="scikit-image 0.26 is not installed")
    from skimage import transform

    for landmarks in _faces(500):
        theirs = transform.SimilarityTransform.from_estimate(landmarks, TEMPLATE)
        np.testing.assert_allclose(similarity_transform(landmarks), theirs.params[:2], rtol=0, atol=1e-5)


def test_the_transform_has_the_least_error_of_all_similarity_transforms():
    for landmarks in _faces(50):
        # The linear equations of u = p x - q y + r, v = q x + p y + s, solved without any formula for p and
        # q.
        x, y = landmarks.T
        one, none = np.ones(5), np.zeros(5)
        rows = np.concatenate([np.stack([x, -y, one, none], 1), np.stack([y, x, none, one], 1)])
        p, q, r, s = np.linalg.lstsq(rows, TEMPLATE.T.ravel(), rcond=None)[0]
        np.testing.assert_allclose(similarity_transform(landmarks), [[p, -q, r], [q, p, s]], atol=1e-8)


@pytest.mark.parametrize(
    ("landmarks", "rule"),
    [
        (np.full((5, 2), 7.0), "at one place"),
        (np.outer(np.arange(5), [3, 4]), "on one line"),
        (TEMPLATE * [-1, 1] + [112, 0], "left and right are exchanged"),
        (np.where(np.eye(5, 2) > 0, np.nan, TEMPLATE), "finite"),
        (TEMPLATE * np.inf, "finite"),
        (TEMPLATE * 1e200, "finite numbers below 1,000,000"),
        (TEMPLATE[:4], r"five points \(x, y\), got numbers \[4, 2\]"),
    ],
)
def test_landmarks_without_a_transform_are_refused(landmarks, rule):
    with pytest.raises(UserError, match=rule) as error:
        align(np.zeros((112, 112, 3), np.uint8), landmarks)
    assert "\n" not in str(error.value)


def test_an_aligned_picture_stays_as_it_is():
    picture = RNG.integers(0, 256, (112, 112, 3), np.uint8)
    assert np.array_equal(align(picture, TEMPLATE), picture)
    for one_channel in (picture[..., 0], picture[..., :1]):
        assert np.array_equal(align(one_channel, TEMPLATE), one_channel)


def test_a_face_is_found_again_and_outside_is_black():
    picture = np.full((60, 50, 3), 200, np.uint8)
    picture[20:40, 10:30] = 50
    shifted = align(picture, TEMPLATE - 30)
    assert shifted.shape == (112, 112, 3)
    assert np.all(shifted[30:90, 30:80] == picture) and np.all(shifted[:29] == 0)
    assert align(picture, TEMPLATE - 30, size=64).shape == (64, 64, 3)


@pytest.mark.parametrize("times", [2, 3, 7.4])
def test_a_large_face_is_shrunk_without_a_shift(times):
    y, x = np.mgrid[: int(112 * times), : int(112 * times)]
    smooth = np.rint((x + 2 * y) / (3 * times) * 2).astype(np.uint8)
    aligned = align(smooth, (TEMPLATE + 0.5) * times - 0.5).astype(float)
    y, x = (np.mgrid[:112, :112] + 0.5) * times - 0.5
    error = (aligned - (x + 2 * y) / (3 * times) * 2)[1:-1, 1:-1]
    assert abs(error.mean()) < 0.3  # by rounding; a shift by half a pixel would give 0.5 and more
    # Every pixel counts: a chessboard of single pixels becomes grey.
    chess = (np.indices(smooth.shape).sum(0) % 2 * 200).astype(np.uint8)
    assert np.abs(align(chess, (TEMPLATE + 0.5) * times - 0.5)[2:-2, 2:-2] - 100.0).max() < 30


def test_the_warp_of_a_part_is_that_of_the_whole():
    picture = RNG.integers(0, 256, (300, 400, 3), np.uint8)
    for landmarks in (
        (TEMPLATE - 56) * 1.4 + [390, 150],
        (TEMPLATE * 0.9 + 60) @ np.array([[0.8, 0.6], [-0.6, 0.8]]),
    ):
        whole = cv2.warpAffine(picture, similarity_transform(landmarks), (112, 112))
        assert np.abs(align(picture, landmarks).astype(int) - whole).max() <= 1
        assert whole.any()


def test_a_face_is_cut_out_of_a_panorama_and_none_out_of_elsewhere():
    panorama = np.full((200, 40_000, 3), 9, np.uint8)
    panorama[:, 39_000:] = 200
    assert np.all(align(panorama, TEMPLATE + [39_500, 20]) == 200)
    assert not align(panorama, TEMPLATE + [50_000, 20]).any()
    assert align(panorama[..., 0], TEMPLATE * 3 + [39_990, 20]).shape == (112, 112)
