"""Identify the content of a data set by a SHA-256, so that it is noticed when it changes.

Text that names files or folders counts without the folders above: a set that was moved is the same set.

    names_and_labels(training_set)     # 64 hex digits
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping

import numpy as np

from plsc.data.dataset import Dataset, SampleSet, class_names

_AT_ONCE = 4096  # samples


def names_and_labels(data: Dataset) -> str:
    """Hash the label and the name of each sample, and the names of the classes; no sample is read.

    A microsecond or so for each sample.
    """
    digest = hashlib.sha256(_encode([data.num_classes, *map(_file_name, class_names(data) or [])]))
    for start, stop in _blocks(len(data)):
        digest.update(_encode([_file_name(data.name(index)) for index in range(start, stop)]))
        digest.update(np.ascontiguousarray(data.labels[start:stop], np.int64))
    return digest.hexdigest()


def content(data: SampleSet, count: int, arrays: Mapping[str, np.ndarray]) -> str:
    """Hash an evaluation set: its arrays (pairs, labels, ...), its preprocessing and every one of `count`
    samples, which are all read.

    Of encoded images the bytes as they are stored, so that another version of the decoder gives the same.
    """
    digest = hashlib.sha256(_encode(data.preprocessing.to_json()))
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            array = np.array([_file_name(str(text)) for text in array.tolist()])
        digest.update(_encode([name, array.dtype.str, array.shape]))
        digest.update(np.ascontiguousarray(array))
    encoded = getattr(data, "encoded", None)
    for start, stop in _blocks(count):
        for index in range(start, stop):
            sample = encoded(index) if encoded else data.images(index, index + 1)
            digest.update(_encode(sample.nbytes))
            digest.update(np.ascontiguousarray(sample))
    return digest.hexdigest()


def _blocks(count: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + _AT_ONCE, count)) for start in range(0, count, _AT_ONCE))


def _file_name(name: str) -> str:
    return os.path.basename(name)


def _encode(values: object) -> bytes:
    """Encode plain values without ambiguity; JSON escapes what is not ASCII, and so any text."""
    return json.dumps(values).encode()
