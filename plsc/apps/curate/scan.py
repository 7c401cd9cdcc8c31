"""Examine every image of a set once: whether it can be decoded, its size, its pixels, and copies of it.

Threads are enough: reading, hashing and OpenCV's decoding all release Python's lock. Try it:
`scan(eval_set(open_images("faces/")))`.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import cv2
import numpy as np

from plsc.data.images import decode_pixels
from plsc.errors import UserError, shown
from plsc.evaluation.sets import EvalSet
from plsc.utils.bar import Bar

_PART = 128  # images that a thread takes at once


class Scan(NamedTuple):
    """The properties of all images of a set; arrays by image."""

    digests: np.ndarray  # uint64 [N, 2], of the encoded bytes, or of the pixels of a set that has none
    sizes: np.ndarray  # int32 [N, 2], height and width before any resizing, 1 of a sample that is no image; 0 where one cannot be read
    faults: dict[int, str]  # image -> why it cannot be used
    mean: float  # over all channels and pixels, of 0 to 255; the images count alike, whatever their size
    std: float


def scan(images: EvalSet, threads: int | None = None) -> Scan:
    """Examine all images, with as many threads as processors."""
    count = images.count
    digests, sizes = np.zeros((count, 2), np.uint64), np.zeros((count, 2), np.int32)
    moments = np.zeros((count, 2))
    faults: dict[int, str] = {}

    def look_at(start: int) -> int:
        stop = min(start + _PART, count)
        for index in range(start, stop):
            try:
                digests[index], sizes[index], moments[index] = _examine(images, index)
            except UserError as error:
                faults[index] = str(error)
        return stop - start

    before = cv2.getNumThreads()
    cv2.setNumThreads(1)  # the threads are the parallelism
    try:
        bar = Bar(f"reading {images.title}", count, "images")
        with ThreadPoolExecutor(threads or os.cpu_count()) as pool, bar:
            for done in pool.map(look_at, range(0, count, _PART)):
                bar.update(done)
    finally:
        cv2.setNumThreads(before)
    # Each image counts alike, as in training, where all have one size: a single huge one must not sway the
    # numbers.
    mean, square = moments.sum(axis=0) / max(int((sizes[:, 0] > 0).sum()), 1)
    return Scan(
        digests, sizes, dict(sorted(faults.items())), float(mean), float(np.sqrt(max(square - mean**2, 0)))
    )


def _examine(images: EvalSet, index: int) -> tuple[np.ndarray, tuple[int, int], tuple[float, float]]:
    """Compute the digest, the size, and the means of the pixels and of their squares. Raises UserError for a
    bad image."""
    if not hasattr(images.data, "encoded"):
        pixels = images.images(index, index + 1)[0]
        if not images.preprocessing.is_image:
            return _digest(pixels.tobytes()), (1, 1), _sample_moments(pixels, images.name_of(index))
        return _digest(pixels.tobytes()), pixels.shape[1:], _moments(pixels.reshape(len(pixels), -1).T)
    data = images.data.encoded(index)
    pixels = decode_pixels(data, images.data.channels == "grey", lambda: images.name_of(index))
    return _digest(data), pixels.shape[:2], _moments(pixels)


def _digest(data: bytes | np.ndarray) -> np.ndarray:
    return np.frombuffer(hashlib.blake2b(data, digest_size=16).digest(), np.uint64)


def _moments(pixels: np.ndarray) -> tuple[float, float]:
    mean, std = cv2.meanStdDev(pixels)
    return float(mean.mean()), float((mean**2 + std**2).mean())


def _sample_moments(sample: np.ndarray, name: str) -> tuple[float, float]:
    values = sample.astype(np.float64)
    if not np.isfinite(values).all():
        raise UserError(f"{shown(name)}: has numbers that are not finite")
    return float(values.mean()), float((values**2).mean())


def same_content(digests: np.ndarray) -> list[np.ndarray]:
    """Find groups of two or more images with the same bytes, ordered by their first: indices int64,
    ascending. Images that could not be read (digest 0) are in none."""
    known = np.flatnonzero(digests.any(axis=1))
    order = known[np.lexsort(digests[known].T)]  # stable: ascending where the digests are the same
    starts = np.flatnonzero(
        np.append(True, (digests[order][1:] != digests[order][:-1]).any(axis=1))[: len(order)]
    )
    lengths = np.diff(starts, append=len(order))
    several = lengths > 1
    groups = [
        order[start : start + length]
        for start, length in zip(starts[several].tolist(), lengths[several].tolist())
    ]
    return sorted(groups, key=lambda group: int(group[0]))
