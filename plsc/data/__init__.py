"""Read data sets, augment their samples and load batches, by numpy and OpenCV only; rank and world size are
given as integers."""

import os

# OpenCV's limit of an image's pixels, which it reads at its first import and checks before it allocates. Its
# own limit is 2^30; see plsc/data/image_size.py for the formats in which a few bytes may promise that many.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(2**26))
