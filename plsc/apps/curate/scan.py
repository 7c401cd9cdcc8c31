"""Examine every image of a set once: whether it can be decoded, its brightness, and copies of it.

Threads are enough: reading, hashing and OpenCV's decoding all release Python's lock. Try it:
`scan(eval_set(open_images("faces/")))`.
"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import cv2
import numpy as np

from plsc.data.images import decode_pixels, is_dark, why_dark
from plsc.errors import UserError
from plsc.evaluation.sets import EvalSet
from plsc.utils.bar import Bar

_PART = 128  # images that a thread takes at once


class Scan(NamedTuple):
    """The properties of all images of a set; arrays by image.

    Attributes:
        digests: uint64 [N, 2], of the encoded bytes, or of the pixels of a set that has none; 0: not read.
        faults: image -> why it cannot be used.
        dark: image with next to nothing in it -> what is the matter with it.
    """

    digests: np.ndarray
    faults: dict[int, str]
    dark: dict[int, str]


def scan(images: EvalSet) -> Scan:
    """Examine all images, with as many threads as processors."""
    count = images.count
    found = Scan(np.zeros((count, 2), np.uint64), {}, {})

    def look_at(start: int) -> int:
        stop = min(start + _PART, count)
        for index in range(start, stop):
            try:
                _examine(images, index, found)
            except UserError as error:
                found.faults[index] = str(error)
        return stop - start

    cv2.setNumThreads(1)  # the threads are the parallelism
    with ThreadPoolExecutor(os.cpu_count()) as pool, Bar(f"reading {images.title}", count, "images") as bar:
        for done in pool.map(look_at, range(0, count, _PART)):
            bar.update(done)
    return found._replace(faults=dict(sorted(found.faults.items())), dark=dict(sorted(found.dark.items())))


def _examine(images: EvalSet, index: int, found: Scan) -> None:
    """Note what is seen of an image. Raises UserError for one that cannot be read."""
    if hasattr(images.data, "encoded"):
        data = images.data.encoded(index)
        pixels = decode_pixels(data, images.data.channels == "grey", lambda: images.name_of(index))
    else:
        data = None
        pixels = images.images(index, index + 1)[0]
    content = pixels.tobytes() if data is None else data
    digest = hashlib.blake2b(content, digest_size=16).digest()
    found.digests[index] = np.frombuffer(digest, np.uint64)
    if is_dark(pixels):
        found.dark[index] = why_dark(data, pixels)


def same_content(digests: np.ndarray) -> list[np.ndarray]:
    """Find groups of two or more images with the same bytes, ordered by their first: indices int64,
    ascending. Images that could not be read (digest 0) are in none."""
    known = np.flatnonzero(digests.any(axis=1))
    order = known[np.lexsort(digests[known].T)]  # stable: ascending where the digests are the same
    change = np.flatnonzero((digests[order][1:] != digests[order][:-1]).any(axis=1)) + 1
    groups = np.split(order, change) if len(order) else []
    return sorted((group for group in groups if len(group) > 1), key=lambda group: int(group[0]))
