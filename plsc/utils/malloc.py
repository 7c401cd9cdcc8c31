"""Decide how the system keeps large blocks of memory: what malloc does when they are freed, and the size of
their pages."""

from __future__ import annotations

import ctypes
import mmap
import os

_M_TRIM_THRESHOLD = -1  # of mallopt, in glibc's malloc.h
_M_MMAP_THRESHOLD = -3
_LARGE = 1 << 20
_LARGEST = (
    64 << 20,
    32 << 20,
)  # a gradient of IResNet's last layer has 51 MB; some versions take no more than the second
_ALL = 1 << 30
_TRIM = 128 << 10  # glibc's own
_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")  # glibc's own, which the user may have set


def return_large_blocks() -> bool:
    """Make malloc map each block from 1 MB on by itself, for the whole process; return whether it does.

    By default glibc raises that bound to the size of what is freed, up to 32 MB, and keeps freed blocks in
    its heap, where what still lives between them holds them. A user's MALLOC_MMAP_THRESHOLD_ stays; other C
    libraries than glibc are left as they are.
    """
    return _set(mapped_from=_LARGE, kept=_TRIM)


def keep_freed_blocks() -> bool:
    """Make malloc keep blocks below 64 MB when they are freed, up to 1 GB at the heap's end; return whether
    it does.

    By default glibc returns the end of its heap again and again, and each step of a training gets its memory
    as fresh pages, which the system has to clear. A user's settings stay, as above.
    """
    return any(_set(mapped_from, kept=_ALL) for mapped_from in _LARGEST)


def ask_for_large_pages(address: int, size: int) -> None:
    """Ask Linux to map `size` bytes of new memory by pages of 2 MB, as numpy asks for its arrays.

    Memory that was written before stays in pages of 4 kB. Systems without such pages are left as they are.
    """
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    if madvise is None or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = (address + size - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if whole > 0:
        madvise(ctypes.c_void_p(start), ctypes.c_size_t(whole), mmap.MADV_HUGEPAGE)


def _set(mapped_from: int, kept: int) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(variable in os.environ for variable in _VARIABLES):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, mapped_from) and mallopt(_M_TRIM_THRESHOLD, kept))
