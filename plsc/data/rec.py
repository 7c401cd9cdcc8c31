"""Read labelled images from a .rec file in InsightFace's layout (MS1MV2, Glint360K, ...) or im2rec's layout.

InsightFace's layout: record 0 has no image. Its labels are (N + 1, N + 1 + identities). Records 1 to N are
the images. The records after them have no images. They list each identity's images and are not needed
here.

Layout of MXNet's im2rec: all records are images, and their keys are in any order.

The labels are read from the records' headers when the set is opened. All these numbers are float32, which is
exact up to 2**24. WebFace42M has 42,474,557 images, but its record 0 reports 42,474,560 - 1. Try it:
`RecImages("train.rec").num_classes`.
"""

import os

import numpy as np

from plsc.data.images import EncodedImages
from plsc.data.recordio import EXACT, Headers, RecordFile, image_of
from plsc.errors import UserError


class RecImages(EncodedImages):
    """The images in a .rec file.

    - `path`: the .rec file, with its .idx file beside it, or the folder that contains both, like
      arcface_torch's key `rec`.
    - further keys: those of EncodedImages (plsc.data.images).
    """

    files = ("path",)

    def __init__(self, path: str, **options):
        super().__init__(**options)
        path = rec_file(path)
        self.records = RecordFile(path)
        self.title = os.path.basename(path)
        headers = self.records.headers()
        self._positions = _images_of(self.records, headers)
        labels = headers.labels[self._positions]
        bad = ~((labels >= 0) & (labels == np.floor(labels)) & (labels <= EXACT))
        if bad.any():
            first = int(np.argmax(bad))
            raise UserError(
                f"{path}: {self.name(first)} has label {labels[first]:g}, which is not a whole number from 0 "
                f"to {EXACT:,}, up to where float32 is exact ({bad.sum():,} such labels in all)"
            )
        self._positions = self._positions[self._set_labels(labels.astype(np.int64), path)]

    def encoded(self, index: int) -> np.ndarray:
        return image_of(self.records.payload(int(self._positions[index])))

    def name(self, index: int) -> str:
        return self.records.name(int(self._positions[index]))


def rec_file(path: str) -> str:
    """Return the .rec file for a path. In a folder, it is train.rec or the only .rec file.

    Raises UserError if a folder has no such file.
    """
    if not os.path.isdir(path):
        return path
    names = sorted(name for name in os.listdir(path) if name.endswith(".rec"))
    if len(names) != 1 and "train.rec" not in names:
        raise UserError(f"{path}: contains {len(names)} .rec files; name the .rec file", key="path")
    return os.path.join(path, "train.rec" if "train.rec" in names else names[0])


def _images_of(records: RecordFile, headers: Headers) -> np.ndarray:
    """Find the positions of the records with images, sorted by key: int64 [N].

    The records themselves determine the images. Record 0 only confirms their number. Raises UserError if it
    does not.
    """
    order = np.argsort(records.keys, kind="stable")
    empty = headers.image_bytes[order] == 0
    first = int(order[0])
    if not (headers.vectors[first] and empty[0]):
        _refuse_empty(records, order[empty])
        return order
    images = order[~empty]
    promised = float(headers.labels[first]) - 1
    if not promised >= 1 or np.float32(len(images) + 1) != headers.labels[first]:
        raise UserError(
            f"{records.path}: its header record promises {promised:,.0f} images, the index has "
            f"{len(images):,} of them; the two files do not belong together, or are incomplete"
        )
    last = np.flatnonzero(~empty)[-1]
    _refuse_empty(records, order[1:last][empty[1:last]])
    return images


def _refuse_empty(records: RecordFile, positions: np.ndarray) -> None:
    if len(positions):
        first = records.name(int(positions[0]))
        raise UserError(f"{records.path}: {first} has no image ({len(positions):,} such records in all)")
