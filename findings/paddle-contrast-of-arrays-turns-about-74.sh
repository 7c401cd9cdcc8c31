#!/usr/bin/env bash
# paddlepaddle 3.3.1 (and 2.6.2), opencv-python-headless 4.12.0, Pillow 12.0.0.
#
# Guess: paddle.vision.transforms.adjust_contrast does the same to a Pillow image, a tensor and an array with
# its pixels: it moves them from or to the image's mean grey level.
# Seen: it does so for Pillow images and tensors. For an array it uses the fixed level 74, whatever the image
# is. A bright photo therefore becomes darker with less contrast, and a dark photo becomes brighter. ColorJitter
# and ContrastTransform call it, so the same setting is another augmentation if OpenCV reads the photos.
# adjust_hue also differs: it takes an array's channels for blue, green and red, as OpenCV orders them. Convert
# the arrays by PIL.Image.fromarray first. (Issue 23 of jbohnslav/opencv_transforms tells where the number comes
# from. It is mended there.)
#
#     mean 30: Pillow 30 tensor 30 array 52
#     mean 74: Pillow 74 tensor 74 array 74
#     mean 200: Pillow 200 tensor 200 array 137
#
# (Each number is the mean grey level after adjust_contrast(image, 0.5).)
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet paddlepaddle==3.3.1 numpy==2.2.6 setuptools \
    opencv-python-headless==4.12.0.88 Pillow==12.0.0
cat >contrast.py <<'PY'
import numpy as np
import paddle
from paddle.vision.transforms import adjust_contrast
from PIL import Image

for mean in (30, 74, 200):
    noise = np.random.default_rng(0).integers(-15, 16, (64, 64, 1))
    array = np.repeat(mean + noise, 3, axis=2).astype(np.uint8)
    pillow = np.asarray(adjust_contrast(Image.fromarray(array), 0.5)).mean()
    planes = paddle.to_tensor(array.transpose(2, 0, 1).astype(np.float32) / 255)
    tensor = adjust_contrast(planes, 0.5).numpy().mean() * 255
    found = adjust_contrast(array, 0.5).mean()
    print(f"mean {mean}: Pillow {pillow:.0f} tensor {tensor:.0f} array {found:.0f}")
    assert abs(pillow - mean) < 1.5 and abs(tensor - mean) < 1.5
    assert abs(found - (mean + 74) / 2) < 1.5
PY
venv/bin/python contrast.py 2>/dev/null
