"""Read data sets, augment their samples and load batches, by numpy and OpenCV only; rank and world size are
given as integers."""

import os

MOST_PIXELS = 2**26  # of an image: 8192 x 8192; 200 MB decoded
# OpenCV reads its limit at its first import, and checks it before it allocates. Its own is 2^30.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(MOST_PIXELS))
