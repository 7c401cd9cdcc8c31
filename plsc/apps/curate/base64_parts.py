"""Read PLSC's base64 parts, which `plsc convert` turns into another format: text files with an image and its
label a line, `base64<TAB>label` or `label<TAB>base64`.

PLSC's documentation had the one order and its tool the other; the first line of each file shows its order.
The files are read once at the start to find the lines. Try it: `Base64Parts("parts/").num_classes`.
"""

from __future__ import annotations

import binascii
import os

import numpy as np

from plsc.data.autodetect import label_is_first
from plsc.data.image_list import SHOWN, find_lines, last_before, read_numbers, whole_lines
from plsc.data.images import EncodedImages
from plsc.errors import CorruptImageError, UserError
from plsc.utils.files import open_regular, refuse_irregular

_TAB = ord("\t")


class Base64Parts(EncodedImages):
    """The images of PLSC's base64 text parts.

    `path`: a part, or a folder of parts, which are read in the order of their names.
    """

    def __init__(self, path: str):
        super().__init__()
        self.parts = part_files(path)
        parts = [read_part(part) for part in self.parts]
        self._part = np.repeat(np.arange(len(parts), dtype=np.int32), [len(labels) for _, _, labels in parts])
        self._starts, self._lengths, labels = (np.concatenate(columns) for columns in zip(*parts))
        self._set_labels(labels, path)

    def encoded(self, index: int) -> np.ndarray:
        with open(self.parts[self._part[index]], "rb", buffering=0) as file:
            text = os.pread(file.fileno(), int(self._lengths[index]), int(self._starts[index]))
        try:
            return np.frombuffer(binascii.a2b_base64(text), np.uint8)
        except binascii.Error as error:
            raise CorruptImageError(f"{self.name(index)}: not base64 ({error})") from None

    def name(self, index: int) -> str:
        """Name an image by its part and its line there."""
        part = int(self._part[index])
        return f"{self.parts[part]}: line {index - int(np.searchsorted(self._part, part)) + 1}"


def part_files(path: str) -> list[str]:
    """List the parts: `path` itself, or the files in it in the order of their names, without those that begin
    with a dot."""
    refuse_irregular(path, os.stat(path).st_mode)
    if os.path.isfile(path):
        return [path]
    files = sorted(
        entry.path for entry in os.scandir(path) if entry.is_file() and not entry.name.startswith(".")
    )
    if not files:
        raise UserError(f"{path}: has no files; give a base64 part, or a folder of them")
    return files


def read_part(path: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the starts of the base64 texts, their lengths, and the labels: int64 [lines] each. UserError names
    bad lines."""
    starts = []
    lengths = []
    labels = []
    bad = []
    count, label_first = 0, None
    with open_regular(path) as file:
        offset = 3 if file.read(3) == b"\xef\xbb\xbf" else 0
    for chunk in whole_lines(path):
        begin, end = find_lines(chunk)
        tab = last_before(chunk == _TAB, end)
        if count == 0:
            label_first = label_is_first(chunk[: end[0]].tobytes())
        if label_first is None:
            raise UserError(f"{path}: line 1 is neither 'base64<TAB>label' nor 'label<TAB>base64'")
        label = read_numbers(chunk, *((begin, tab) if label_first else (tab + 1, end)))
        start, stop = (tab + 1, end) if label_first else (begin, tab)
        wrong = np.flatnonzero((label < 0) | (tab <= begin) | (stop <= start))
        bad += (wrong + count + 1).tolist()
        starts.append(start + offset)
        lengths.append(stop - start)
        labels.append(label)
        count, offset = count + len(label), offset + len(chunk)
    if bad or not count:
        wanted = "label<TAB>base64" if label_first else "base64<TAB>label"
        what = (
            f"line {', '.join(map(str, bad[:SHOWN]))}: must be '{wanted}'; {len(bad):,} bad lines in all"
            if bad
            else "is empty"
        )
        raise UserError(f"{path}: {what}")
    return np.concatenate(starts), np.concatenate(lengths), np.concatenate(labels)
