"""Read data sets, augment their samples and load batches, with numpy and OpenCV only.

The rank and the world size are passed as integers. Import your own data set's base class from here
(docs/extend.md):

    from plsc.data import ImageFolder
"""

import importlib

# Most pixels that an image may have: 8192 x 8192, or 200 MB decoded. plsc/__init__.py passes it to OpenCV.
MOST_PIXELS = 2**26

_CLASSES = {
    "Dataset": "plsc.data.dataset",
    "PairSet": "plsc.data.dataset",
    "IdentificationSet": "plsc.data.dataset",
    "ImageFolder": "plsc.data.folder",
    "ImageList": "plsc.data.image_list",
    "RecImages": "plsc.data.rec",
}


def __getattr__(name: str):  # imports a class on first use, as plsc does
    if name not in _CLASSES:
        raise AttributeError(f"module 'plsc.data' has no attribute '{name}'")
    return getattr(importlib.import_module(_CLASSES[name]), name)
