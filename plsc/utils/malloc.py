"""Let the C library's malloc return large blocks to the system when they are freed."""

from __future__ import annotations

import ctypes
import os

_M_MMAP_THRESHOLD = -3  # of mallopt, in glibc's malloc.h
_LARGE = 1 << 20
_VARIABLE = "MALLOC_MMAP_THRESHOLD_"  # glibc's own, which the user may have set


def return_large_blocks() -> bool:
    """Make malloc map each block from 1 MB on by itself, for the whole process; return whether it does.

    By default glibc raises that bound to the size of what is freed, up to 32 MB, and keeps freed blocks in its heap, where what
    still lives between them holds them. A user's MALLOC_MMAP_THRESHOLD_ stays; other C libraries than glibc are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or _VARIABLE in os.environ:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE))
