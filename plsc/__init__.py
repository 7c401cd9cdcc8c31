"""Train classifiers with more classes than one device can hold, on PaddlePaddle: `from plsc import Entry`."""

import importlib
import os
import sys
import warnings
import zlib  # noqa: F401 (before Paddle: on 2.6 a zlib that is loaded after it crashes)
from typing import TYPE_CHECKING

from plsc.utils.version import __version__

if TYPE_CHECKING:
    from plsc.apps.gallery import Gallery
    from plsc.entry import Entry

__all__ = ["Entry", "Gallery", "__version__"]
__dir__ = __all__.copy  # what is imported on first use, too

# OpenCV reads its limit when it is first imported, and checks it before it allocates. Its own is 2^30.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(2**26))
# A line or two for each image that is damaged, which is named by us, and for each network that is opened.
if "OPENCV_LOG_LEVEL" not in os.environ:
    os.environ["OPENCV_LOG_LEVEL"] = "SILENT"
    if "cv2" in sys.modules:  # it has read the variable already
        sys.modules["cv2"].utils.logging.setLogLevel(0)
warnings.filterwarnings("ignore", message="No ccache found")  # of Paddle, when it is imported

if not TYPE_CHECKING:  # a type checker knows the names above, and should report any other

    def __getattr__(name: str):
        # Imported on first use: reading the version or a config should not import everything.
        module = {"Entry": "plsc.entry", "Gallery": "plsc.apps.gallery"}.get(name)
        if module is None:
            raise AttributeError(f"module 'plsc' has no attribute '{name}'")
        return getattr(importlib.import_module(module), name)
