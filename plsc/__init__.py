"""Train classifiers with more classes than one device can hold, on PaddlePaddle: `from plsc import Entry`."""

import importlib
import os
import sys
import warnings
import zlib  # noqa: F401 (must come before Paddle: Paddle 2.6 crashes if zlib is loaded after it)
from typing import TYPE_CHECKING

from plsc.utils.version import __version__

if TYPE_CHECKING:
    from plsc.apps.gallery import Gallery
    from plsc.entry import Entry

__all__ = ["Entry", "Gallery", "__version__"]
__dir__ = __all__.copy  # includes the names that are imported on first use

# OpenCV reads this limit when it is first imported, and checks it before it allocates. Its default is 2^30.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(2**26))
# OpenCV logs a line or two for each damaged image, which plsc reports itself, and for each network it opens.
if "OPENCV_LOG_LEVEL" not in os.environ:
    os.environ["OPENCV_LOG_LEVEL"] = "SILENT"
    if opencv := sys.modules.get("cv2"):  # it has already read the variable
        for owner in (opencv, getattr(getattr(opencv, "utils", None), "logging", None)):  # OpenCV 4, OpenCV 5
            if hasattr(owner, "setLogLevel"):
                owner.setLogLevel(0)
warnings.filterwarnings("ignore", message="No ccache found")  # Paddle warns when it is imported

if not TYPE_CHECKING:  # a type checker knows the names above, and should report any other name

    def __getattr__(name: str):
        # Imported on first use: reading the version or a config should not import everything.
        module = {"Entry": "plsc.entry", "Gallery": "plsc.apps.gallery"}.get(name)
        if module is None:
            raise AttributeError(f"module 'plsc' has no attribute '{name}'")
        return getattr(importlib.import_module(module), name)
