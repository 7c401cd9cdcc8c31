import cv2
import numpy as np
import pytest


@pytest.fixture
def folder(tmp_path):
    """Three images of 12 x 16 (height x width), red at the left and green at the right, and one file that is
    not an image."""
    picture = np.zeros((12, 16, 3), np.uint8)
    picture[:, :8, 2] = 255  # OpenCV writes BGR
    picture[:, 8:, 1] = 255
    for name in ("a.png", "b c.png", "ä.png"):
        (tmp_path / name).write_bytes(cv2.imencode(".png", picture)[1].tobytes())
    (tmp_path / "broken.jpg").write_bytes(b"not an image")
    return tmp_path
