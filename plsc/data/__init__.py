"""Data sets, transforms and the loader: numpy and OpenCV only; rank and world size come in as integers."""
