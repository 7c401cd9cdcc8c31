"""Align a face by five landmarks: eyes, nose and mouth go to the places that networks of faces expect.

    align(photo, face.landmarks).shape    # (112, 112, 3)

The similarity transform (rotation, scale, shift) whose squared error is least is Umeyama's (1991, IEEE Trans.
PAMI 13(4)). With points as complex numbers it is w = a z + b, and a and b are those of linear regression.
"""

import cv2
import numpy as np

SIZE = 112
# ArcFace's places in a picture of 112 x 112, as (x, y): the eye on the picture's left, the one on its right,
# the nose, the corner of the mouth on the left, the one on the right. OpenCV's alignCrop has the same.
TEMPLATE = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]]
)


def similarity_transform(landmarks: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Compute the matrix float64 [2, 3] that takes landmarks to places, both [5, 2]."""
    source, target = landmarks @ [1, 1j], places @ [1, 1j]
    z, w = source - source.mean(), target - target.mean()
    a = np.vdot(z, w) / np.vdot(z, z).real
    b = target.mean() - a * source.mean()
    return np.array([[a.real, -a.imag, b.real], [a.imag, a.real, b.imag]])


def align(photo: np.ndarray, landmarks: np.ndarray, size: int = SIZE) -> np.ndarray:
    """Cut a face out of a photo, uint8 [H, W, 3], upright and in its place: uint8 [size, size, 3].

    landmarks: [5, 2], (x, y) in pixels in the order of TEMPLATE. What lies outside of the photo is black.
    """
    matrix = similarity_transform(landmarks, TEMPLATE * (size / SIZE))
    times = int(1 / np.hypot(*matrix[:, 0]))
    if times > 1:  # linear interpolation would skip most of the pixels
        height, width = photo.shape[:2]
        photo = cv2.resize(photo, (width // times, height // times), interpolation=cv2.INTER_AREA)
        scale = np.array([width, height]) / photo.shape[1::-1]
        # Pixels' centres lie on whole numbers: x of the small photo is (x + 0.5) * scale - 0.5 of the other.
        shift = matrix[:, 2] + matrix[:, :2] @ (scale / 2 - 0.5)
        matrix = np.column_stack([matrix[:, :2] * scale, shift])
    return cv2.warpAffine(photo, matrix, (size, size), flags=cv2.INTER_LINEAR)
