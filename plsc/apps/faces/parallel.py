"""Work on several photos at once, one thread each.

OpenCV's networks gain less from a second thread than a second photo does: a photo of 480 x 360 takes two
threads together 0.6 of the time that it takes one. So several photos share the processors, and a single photo
gets all of them.
"""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

import cv2

_MOST = 16  # threads, each with a network in memory
_lock = threading.RLock()  # one call gets all threads
T, R = TypeVar("T"), TypeVar("R")


class Pool(Generic[T]):
    """Lends objects that one thread at a time may use, and makes one whenever all are lent.

        networks = Pool(open_network)
        with networks.one() as network:
            network.run(...)

    make: makes an object.
    """

    def __init__(self, make: Callable[[], T]):
        self._make = make
        self._free: list[T] = []  # append and pop are atomic

    @contextlib.contextmanager
    def one(self) -> Iterator[T]:
        """Lend an object to the calling thread."""
        try:
            lent = self._free.pop()
        except IndexError:
            lent = self._make()
        try:
            yield lent
        finally:
            self._free.append(lent)


def in_parallel(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Yield `work(item)` of each item, in their order."""
    if len(items) < 2:
        yield from map(work, items)
        return
    with _lock:
        threads = cv2.getNumThreads()
        cv2.setNumThreads(1)  # the setting is one of the process
        try:
            yield from _threads().map(work, items)
        finally:
            cv2.setNumThreads(threads)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(_MOST, len(os.sched_getaffinity(0))), "plsc-photos")
