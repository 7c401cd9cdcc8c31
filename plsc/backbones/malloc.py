"""Set what glibc's malloc does with the blocks that a network frees in each step."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # mallopt's parameters, from glibc's malloc.h


def keep_freed_blocks(keep: bool) -> None:
    """Keep freed memory for the next step, or return it to the system at once.

    By default glibc returns its heap's end in every step. The next step then gets fresh pages, which the
    system has to clear. Blocks that are freed below a living block stay in the heap.

    Args:
        keep: True to keep blocks below 64 MB, up to 1 GB in all. False to return blocks from 1 MB up.
    """
    mallopt = ctypes.CDLL(None).mallopt
    # A gradient in IResNet's last layer has 51 MB. Some glibc versions accept at most 32 MB.
    mapped_from = (64 << 20, 32 << 20) if keep else (1 << 20,)
    for size in mapped_from:
        if mallopt(_M_MMAP_THRESHOLD, size):
            break
    mallopt(_M_TRIM_THRESHOLD, 1 << 30 if keep else 128 << 10)  # 128 kB is glibc's default
