"""Examine every image in a set once: whether it can be decoded, is dark or transparent, and its copies.

Threads are enough, because reading, hashing and OpenCV's decoding all release Python's lock. Try it:

    scan(eval_set(open_images("faces/")))
"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import cv2
import numpy as np

from plsc.data.images import decode_pixels, is_dark, is_transparent, why_dark
from plsc.errors import UserError
from plsc.evaluation.sets import EvalSet
from plsc.utils.bar import Bar
from plsc.utils.text import plural

TRANSPARENT = "transparent pixels, whose hidden colours the network sees; put them onto one background"
_PART = 128  # images per thread task


class Scan(NamedTuple):
    """Properties of a set's N images.

    Attributes:
        digests: uint64 [N, 2], digest of the encoded bytes, or the pixels if the set has no encoded
            bytes. 0 if the image could not be read.
        faults: image index -> why it cannot be used.
        dark: index of an image that is almost black or has one colour -> what is wrong with it.
        transparent: indices of the images that have transparent pixels.
    """

    digests: np.ndarray
    faults: dict[int, str]
    dark: dict[int, str]
    transparent: list[int]


def scan(images: EvalSet) -> Scan:
    """Examine all images. There is one thread per processor."""
    count = images.count
    found = Scan(np.zeros((count, 2), np.uint64), {}, {}, [])

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
    faults, dark = (dict(sorted(each.items())) for each in (found.faults, found.dark))
    return Scan(found.digests, faults, dark, sorted(found.transparent))


def _examine(images: EvalSet, index: int, found: Scan) -> None:
    """Store an image's digest in `found`, why it is dark if it is, and whether it is transparent.

    Raises UserError if the image cannot be read.
    """
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
    if data is not None and is_transparent(data):
        found.transparent.append(index)


def about_lone_images(labels: np.ndarray | None) -> str:
    """Tell how many classes have only one image. Return "" if there are none.

    Args:
        labels: int64 [N], each image's class. None if they are unknown.
    """
    count = 0 if labels is None else int((np.bincount(labels) == 1).sum())
    what = plural(count, "class has", "classes have")
    return f"{what} only one image, which makes no pair to verify" if count else ""


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
