"""Decide how Linux keeps large blocks of memory: what malloc does when they are freed, and the size of their
pages."""

import ctypes
import mmap

_C = ctypes.CDLL(None)
_M_TRIM_THRESHOLD = -1  # of mallopt, in glibc's malloc.h
_M_MMAP_THRESHOLD = -3


def return_large_blocks() -> None:
    """Make malloc map each block from 1 MB on by itself, for the whole process.

    By default glibc raises that bound to the size of what is freed, up to 32 MB, and keeps freed blocks in
    its heap, where what still lives between them holds them.
    """
    _C.mallopt(_M_MMAP_THRESHOLD, 1 << 20)
    _C.mallopt(_M_TRIM_THRESHOLD, 128 << 10)  # glibc's own


def keep_freed_blocks() -> None:
    """Make malloc keep blocks below 64 MB when they are freed, up to 1 GB at the heap's end.

    By default glibc returns the end of its heap again and again, and each step of a training gets its memory
    as fresh pages, which the system has to clear.
    """
    # A gradient of IResNet's last layer has 51 MB; some versions take no more than 32 MB.
    _C.mallopt(_M_MMAP_THRESHOLD, 64 << 20) or _C.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    _C.mallopt(_M_TRIM_THRESHOLD, 1 << 30)


def ask_for_large_pages(address: int, size: int) -> None:
    """Ask Linux to map `size` bytes of new memory by pages of 2 MB, as numpy asks for its arrays.

    Memory that was written before stays in pages of 4 kB. Systems without such pages are left as they are.
    """
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = (address + size - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if whole > 0:
        _C.madvise(ctypes.c_void_p(start), ctypes.c_size_t(whole), mmap.MADV_HUGEPAGE)
