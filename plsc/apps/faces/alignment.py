"""Align a face by five landmarks: move its eyes, nose and mouth to the positions that face networks expect.

    align(photo, face.landmarks).shape    # (112, 112, 3)

The transform is a similarity transform (rotation, scale, shift) with the least squared error, after Umeyama
(1991, IEEE Trans. PAMI 13(4)). If points are complex numbers, the transform is w = a z + b. Linear regression
gives a and b.
"""

import cv2
import numpy as np

SIZE = 112
# ArcFace's landmarks (x, y) in a 112 x 112 picture: the eye on the picture's left, the eye on the right, the
# nose, the mouth's left corner, the right corner. OpenCV's alignCrop uses the same positions.
TEMPLATE = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]]
)


def similarity_transform(landmarks: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Compute the similarity transform that moves landmarks to given positions.

    Args:
        landmarks: points (x, y), float [5, 2].
        places: target positions (x, y), float [5, 2].

    Returns the matrix, float64 [2, 3].
    """
    source, target = landmarks @ [1, 1j], places @ [1, 1j]
    z, w = source - source.mean(), target - target.mean()
    a = np.vdot(z, w) / np.vdot(z, z).real
    b = target.mean() - a * source.mean()
    return np.array([[a.real, -a.imag, b.real], [a.imag, a.real, b.imag]])


def align(photo: np.ndarray, landmarks: np.ndarray, size: int = SIZE) -> np.ndarray:
    """Crop a face from a photo, upright and aligned.

    Args:
        photo: pixels, uint8 [H, W, 3].
        landmarks: points (x, y) in pixels, float [5, 2] in TEMPLATE's order.
        size: the result's side in pixels.

    Returns the aligned face, uint8 [size, size, 3]. Pixels outside the photo are black.
    """
    matrix = similarity_transform(landmarks, TEMPLATE * (size / SIZE))
    times = int(1 / np.hypot(*matrix[:, 0]))
    if times > 1:  # linear interpolation would skip most pixels
        height, width = photo.shape[:2]
        photo = cv2.resize(photo, (width // times, height // times), interpolation=cv2.INTER_AREA)
        scale = np.array([width, height]) / photo.shape[1::-1]
        # Pixel centres have integer coordinates. So x in the small photo is (x + 0.5) * scale - 0.5 in the
        # original.
        shift = matrix[:, 2] + matrix[:, :2] @ (scale / 2 - 0.5)
        matrix = np.column_stack([matrix[:, :2] * scale, shift])
    return cv2.warpAffine(photo, matrix, (size, size), flags=cv2.INTER_LINEAR)
