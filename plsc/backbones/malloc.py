"""Decide what glibc's malloc does with the blocks that a network frees in each step."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt, in glibc's malloc.h


def keep_freed_blocks(keep: bool) -> None:
    """Keep blocks below 64 MB for the next step, up to 1 GB of them, or return all from 1 MB on at once.

    By default glibc returns the end of its heap again and again, and a step gets its memory as fresh pages,
    which the system has to clear; what is freed further down stays, held by what still lives above it.
    """
    mallopt = ctypes.CDLL(None).mallopt
    # A gradient of IResNet's last layer has 51 MB; some versions take no more than 32 MB.
    mapped_from = (64 << 20, 32 << 20) if keep else (1 << 20,)
    for size in mapped_from:
        if mallopt(_M_MMAP_THRESHOLD, size):
            break
    mallopt(_M_TRIM_THRESHOLD, 1 << 30 if keep else 128 << 10)  # 128 kB is glibc's own
