"""Load a library that Paddle's wheel carries, to call it beside Paddle: the process has it once.

paddle_library("libdnnl.so.3")  # ctypes.CDLL, or None in a build without it
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path


@functools.cache
def paddle_library(name: str) -> ctypes.CDLL | None:
    """Load the library of this file name; None in a build of Paddle without it."""
    import paddle

    path = Path(paddle.__file__).parent / "libs" / name
    return ctypes.CDLL(str(path)) if path.exists() else None
