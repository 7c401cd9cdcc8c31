#!/usr/bin/env bash
# paddlepaddle 3.3.1 (and 2.6.2), opencv-python-headless 4.12.0, Pillow 12.0.0.
#
# Guess: paddle.vision.transforms.affine does the same to a Pillow image and to an array with its pixels. Its
# documentation says that it turns clockwise about the centre.
# Seen: it does so for Pillow images. An array is turned counter-clockwise about its upper left corner, because
# the translation overwrites the part of the matrix that keeps the centre. RandomAffine calls affine, so it
# moves faces out of their crops if the images were read by OpenCV: a square in the centre moves by a third of
# the width. `rotate` treats both alike. Convert the arrays by PIL.Image.fromarray first.
#
#     affine 30: Pillow (30.0, 30.0) array (41.0, 11.0)
#     rotate 30: Pillow (30.0, 30.0) array (29.8, 30.3)
#
# (Each pair is the column and row of the square's centre. It is 30, 30 before.)
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet paddlepaddle==3.3.1 numpy==2.2.6 setuptools opencv-python-headless==4.12.0.88 \
    pillow==12.0.0
cat >affine.py <<'PY'
import numpy as np
from paddle.vision.transforms import affine, rotate
from PIL import Image

square = np.zeros((61, 61, 3), np.uint8)
square[25:36, 25:36] = 255


def centre(image):
    rows, columns = np.nonzero(np.asarray(image)[..., 0])
    return round(float(columns.mean()), 1), round(float(rows.mean()), 1)


def turned(image):
    return affine(image, angle=30, translate=(0, 0), scale=1.0, shear=(0, 0))


def distance(point):
    return max(abs(each - 30) for each in point)


seen = []
for name, function in (("affine", turned), ("rotate", lambda image: rotate(image, 30))):
    pillow, array = centre(function(Image.fromarray(square))), centre(function(square))
    print(f"{name} 30: Pillow {pillow} array {array}")
    seen.append((distance(pillow), distance(array)))
assert seen[0][0] < 1 and seen[0][1] > 10, "affine treats both alike"
assert max(seen[1]) < 1
PY
venv/bin/python affine.py 2>/dev/null
