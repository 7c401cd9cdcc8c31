"""Examine every image in a set once: whether it can be decoded, whether it is dark, and its copies.

Threads are enough, because reading, hashing and OpenCV's decoding all release Python's lock. Try it:

    scan(eval_set(open_images("faces/")))
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

_PART = 128  # images per thread task


class Scan(NamedTuple):
    """Properties of a set's N images.

    Attributes:
        digests: uint64 [N, 2], digest of the encoded bytes, or the pixels if the set has no encoded
            bytes. 0 if the image could not be read.
        faults: image index -> why it cannot be used.
        dark: index of an image that is almost black or has one colour -> what is wrong with it.
    """

    digests: np.ndarray
    faults: dict[int, str]
    dark: dict[int, str]


def scan(images: EvalSet) -> Scan:
    """Examine all images. There is one thread per processor."""
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

    cv2.setNumThreads(1)  # the pool's threads already use all processors
    with ThreadPoolExecutor(os.cpu_count()) as pool, Bar(f"reading {images.title}", count, "images") as bar:
        for done in pool.map(look_at, range(0, count, _PART)):
            bar.update(done)
    return found._replace(faults=dict(sorted(found.faults.items())), dark=dict(sorted(found.dark.items())))


def _examine(images: EvalSet, index: int, found: Scan) -> None:
    """Store an image's digest in `found`, and why it is dark if it is. Raises UserError if the image
    cannot be read."""
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
    """Find groups with two or more images that have the same bytes.

    Args:
        digests: uint64 [N, 2]. An image with the digest 0 was not read and is in no group.

    Returns for each group its indices, int64, ascending. The groups are ordered by their first index.
    """
    known = np.flatnonzero(digests.any(axis=1))
    order = known[np.lexsort(digests[known].T)]  # stable, so that equal digests keep ascending indices
    change = np.flatnonzero((digests[order][1:] != digests[order][:-1]).any(axis=1)) + 1
    groups = np.split(order, change) if len(order) else []
    return sorted((group for group in groups if len(group) > 1), key=lambda group: int(group[0]))
