"""Read data sets, augment their samples and load batches, by numpy and OpenCV only; rank and world size are
given as integers."""

MOST_PIXELS = 2**26  # of an image: 8192 x 8192; 200 MB decoded. plsc/__init__.py tells it to OpenCV
