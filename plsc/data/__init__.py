"""Read data sets, augment their samples and load batches, by numpy and OpenCV only; rank and world size are
given as integers.

What a class of your own derives from is imported from here (docs/extend.md):

    from plsc.data import ImageFolder
"""

import importlib

MOST_PIXELS = 2**26  # of an image: 8192 x 8192; 200 MB decoded. plsc/__init__.py tells it to OpenCV

_CLASSES = {
    "Dataset": "plsc.data.dataset",
    "PairSet": "plsc.data.dataset",
    "IdentificationSet": "plsc.data.dataset",
    "ImageFolder": "plsc.data.folder",
    "ImageList": "plsc.data.image_list",
    "RecImages": "plsc.data.rec",
}


def __getattr__(name: str):  # imported on first use, as in plsc
    if name not in _CLASSES:
        raise AttributeError(f"module 'plsc.data' has no attribute '{name}'")
    return getattr(importlib.import_module(_CLASSES[name]), name)
