"""Process several photos at once, with one thread for each photo.

OpenCV's networks gain less from a second thread than from a second photo: two threads need 0.6 times as long
as one thread for a 480 x 360 photo. So if there are several photos, each gets one thread. A single photo gets
all threads.
"""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

import cv2

_MOST = 16  # most threads, each with a network in memory
_lock = threading.RLock()  # only one call at a time uses the threads
T, R = TypeVar("T"), TypeVar("R")


class Pool(Generic[T]):
    """A pool whose objects one thread at a time may use. If all are lent, the pool makes another one.

        networks = Pool(open_network)
        with networks.one() as network:
            network.run(...)

    Args:
        make: function that makes an object.
    """

    def __init__(self, make: Callable[[], T]):
        self._make = make
        self._free: list[T] = []  # append and pop are atomic

    @contextlib.contextmanager
    def one(self) -> Iterator[T]:
        """Lend an object to the calling thread for the `with` block."""
        try:
            lent = self._free.pop()
        except IndexError:
            lent = self._make()
        try:
            yield lent
        finally:
            self._free.append(lent)


def in_parallel(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Yield `work(item)` for each item, in order."""
    if len(items) < 2:
        yield from map(work, items)
        return
    with _lock:
        threads = cv2.getNumThreads()
        cv2.setNumThreads(1)  # this setting applies to the whole process
        try:
            yield from _threads().map(work, items)
        finally:
            cv2.setNumThreads(threads)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(_MOST, len(os.sched_getaffinity(0))), "plsc-photos")
