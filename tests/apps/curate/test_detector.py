import cv2
import numpy as np
import pytest

from plsc.apps.curate import detector
from plsc.apps.curate.alignment import similarity_transform
from plsc.apps.curate.detector import Detector
from plsc.errors import UserError

needs_detector = pytest.mark.skipif(not detector.installed(), reason="the extra align is not installed")


def test_without_its_package_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(detector, "_PACKAGES", {"numpy": "numpy", "no_such_module": "no-such-package"})
    with pytest.raises(UserError, match=r"pip install no-such-package \(the extra align\)"):
        Detector()


@needs_detector
def test_the_face_of_a_photo_is_found():
    data = pytest.importorskip("skimage.data", reason="scikit-image, which ships the photo, is not installed")
    photo = data.astronaut()
    (face,) = Detector().detect(photo)
    # Read off the enlarged photo by eye, in pixels: the pupils, the tip of the nose, the corners of the
    # mouth.
    by_eye = [[203.8, 100.5], [246.5, 103.3], [225, 127], [203, 139.7], [244.3, 141.3]]
    np.testing.assert_allclose(face.landmarks, by_eye, atol=3)
    np.testing.assert_allclose(face.landmarks[:2], by_eye[:2], atol=1)
    left, top, right, bottom = face.box
    assert left < 200 and right > 250 and top < 80 and bottom > 155 and face.score > 0.99
    # Its points fit the template to some pixels, and the face stands upright.
    (cos, sin, _), _ = similarity_transform(face.landmarks)
    assert abs(np.degrees(np.arctan2(sin, cos))) < 6


@needs_detector
def test_the_landmarks_of_a_mirror_image_are_mirrored():
    data = pytest.importorskip("skimage.data", reason="scikit-image, which ships the photo, is not installed")
    photo = data.astronaut()
    (face,), (mirrored,) = (Detector().detect(picture) for picture in (photo, photo[:, ::-1].copy()))
    back = mirrored.landmarks[[1, 0, 2, 4, 3]] * [-1, 1] + [photo.shape[1] - 1, 0]
    np.testing.assert_allclose(back, face.landmarks, atol=3)
    assert abs(np.mean((back - face.landmarks)[:, 0])) < 1


@needs_detector
def test_where_there_is_no_face_none_is_found():
    finder = Detector()
    rng = np.random.default_rng(0)
    assert finder.detect(np.zeros((200, 200, 3), np.uint8)) == []
    assert finder.detect(rng.integers(0, 256, (120, 160, 3), np.uint8)) == []
    for shape in ((1, 1, 3), (5, 300, 3), (3000, 12, 3)):
        assert finder.detect(np.zeros(shape, np.uint8)) == []


@needs_detector
def test_a_larger_photo_gives_the_same_face():
    data = pytest.importorskip("skimage.data", reason="scikit-image, which ships the photo, is not installed")
    photo = data.astronaut()
    finder = Detector()
    (face,) = finder.detect(photo)
    large = cv2.resize(
        photo, None, fx=4, fy=4, interpolation=cv2.INTER_CUBIC
    )  # shrunk again: above LONGEST_SIDE
    again = finder.detect(large)[0]
    np.testing.assert_allclose((again.landmarks + 0.5) / 4 - 0.5, face.landmarks, atol=1.5)
    np.testing.assert_allclose(np.array(again.box) / 4, face.box, atol=6)


@needs_detector
def test_a_shrunk_picture_keeps_its_corners(monkeypatch):
    """Its sides are rounded, so that it is not shrunk by quite the same in both directions."""

    def whole_picture(self, picture):
        height, width = picture.shape[:2]
        corners = np.array([[0, 0], [width, 0], [0, height], [width, height], [width, height]])
        return np.array([[0, 0, width, height]]), np.ones(1), corners[None]

    monkeypatch.setattr(Detector, "_cascade", whole_picture)
    (face,) = Detector().detect(np.zeros((21, 4001, 3), np.uint8))
    assert face.box == pytest.approx((-0.5, -0.5, 4000.5, 20.5))
    np.testing.assert_allclose(face.landmarks[4], [4000.5, 20.5])
