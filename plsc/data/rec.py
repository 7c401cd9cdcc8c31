"""Read labelled images from a .rec file: InsightFace's layout (MS1MV2, Glint360K, ...) and that of MXNet's
im2rec.

InsightFace: record 0 has no image, but the labels (N + 1, N + 1 + identities); the images are records 1 to N;
then follow records without images that say which images an identity has, which are not needed here. im2rec:
images only, their keys in any order. The labels are read from the records' headers at the start. Try it:
`RecImages("train.rec").num_classes`.
"""

import os

import numpy as np

from plsc.data.images import EncodedImages
from plsc.data.recordio import Headers, RecordFile, image_of
from plsc.errors import UserError


class RecImages(EncodedImages):
    """The images of a .rec file.

    `path`: the .rec file; its .idx file lies beside it. Further keys: those of
    plsc.data.images.EncodedImages.
    """

    files = ("path",)

    def __init__(self, path: str, **options):
        super().__init__(**options)
        self.records = RecordFile(path)
        self.title = os.path.basename(path)
        headers = self.records.headers()
        self._positions = _images_of(self.records, headers)
        labels = headers.labels[self._positions]
        bad = ~((labels >= 0) & (labels == np.floor(labels)) & (labels < 2**31))
        if bad.any():
            first = int(np.argmax(bad))
            raise UserError(
                f"{path}: {self.name(first)} has label {labels[first]:g}, which is not a whole number from 0 "
                f"up ({bad.sum():,} such labels in all)"
            )
        self._positions = self._positions[self._set_labels(labels.astype(np.int64), path)]

    def encoded(self, index: int) -> np.ndarray:
        return image_of(self.records.payload(int(self._positions[index])))

    def name(self, index: int) -> str:
        return self.records.name(int(self._positions[index]))


def _images_of(records: RecordFile, headers: Headers) -> np.ndarray:
    """Find the records with images, in the order of their keys: int64 [N]."""
    order = np.argsort(records.keys, kind="stable")
    first = int(order[0])
    if not (headers.vectors[first] and headers.image_bytes[first] == 0):
        return _with_images(records, headers, order)
    stop = float(headers.labels[first])
    keys = records.keys[order]
    images = order[(keys >= 1) & (keys < stop)]
    if not stop >= 2 or len(images) != int(stop) - 1:
        raise UserError(
            f"{records.path}: its header record promises {stop - 1:,.0f} images, the index has "
            f"{len(images):,} of them; the two files do not belong together, or are not whole"
        )
    return _with_images(records, headers, images)


def _with_images(records: RecordFile, headers: Headers, positions: np.ndarray) -> np.ndarray:
    empty = headers.image_bytes[positions] == 0
    if empty.any():
        first = records.name(int(positions[np.argmax(empty)]))
        raise UserError(f"{records.path}: {first} has no image ({empty.sum():,} such records in all)")
    return positions
