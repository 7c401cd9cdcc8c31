"""Read labelled images from a .rec file: InsightFace's layout (MS1MV2, Glint360K, ...) and that of MXNet's
im2rec.

InsightFace: record 0 has no image, but the labels (N + 1, N + 1 + identities); the images are records 1 to N;
then follow records without images that say which images an identity has, which are not needed here. im2rec:
images only, their keys in any order. The labels are read from the records' headers at the start. Try it:
`RecImages("train.rec").num_classes`.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from plsc.data.hold_out import check_hold_out, choose_held_out, class_keys
from plsc.data.images import EncodedImages
from plsc.data.recordio import Headers, RecordFile, image_of
from plsc.errors import MissingFileError, UserError
from plsc.utils.logging import get_logger


class RecImages(EncodedImages):
    """The images of a .rec file.

    `path`: the .rec file. `index`: its .idx file; empty = the one beside it; where there is none, the records
    are found by a scan. `hold_out`: the share of the classes that is left out, chosen by their numbers, see
    plsc.data.image_list.ImageFiles. Further keys: those of all image formats, see
    plsc.data.images.EncodedImages.
    """

    def __init__(self, path: str, index: str = "", hold_out: float = 0.0, **options):
        self.check(path=path, index=index, hold_out=hold_out, **options)
        super().__init__(**options)
        self.records = RecordFile(path, index)
        if self.records.scanned:
            get_logger().info(
                f"{path}: no {Path(self.records.index).name}, found {len(self.records):,} records by a scan"
            )
        headers = self.records.headers()
        self._positions = _images_of(self.records, headers)
        self._set_labels(self._whole(headers.labels[self._positions]), path)
        if hold_out:
            kept = ~choose_held_out(class_keys(None, self.num_classes), hold_out, path)
            self._positions = self._positions[kept[self.labels]]
            self._set_labels((np.cumsum(kept) - 1)[self.labels[kept[self.labels]]], path)

    @classmethod
    def check(cls, **kwargs) -> None:
        super().check(**kwargs)
        check_hold_out(kwargs.get("hold_out", 0.0))
        for key in ("path", "index"):
            if kwargs.get(key) and not os.path.isfile(kwargs[key]):
                raise MissingFileError(
                    f"file '{kwargs[key]}' does not exist (looked in {Path.cwd()})", key=key
                )

    @property
    def title(self) -> str:
        return os.path.basename(self.records.path)

    def encoded(self, index: int) -> np.ndarray:
        return image_of(self.records.payload(int(self._positions[index])))

    def name(self, index: int) -> str:
        return self.records.name(int(self._positions[index]))

    def _whole(self, labels: np.ndarray) -> np.ndarray:
        """Convert the labels to int64; UserError naming the first that is no whole number from 0 up."""
        bad = ~((labels >= 0) & (labels == np.floor(labels)) & (labels < 2**31))
        if bad.any():
            first = int(np.argmax(bad))
            raise UserError(
                f"{self.records.path}: {self.name(first)} has label {labels[first]:g}, which is not a "
                "whole number from 0 up"
                f" ({bad.sum():,} such labels in all)"
            )
        return labels.astype(np.int64)


def _images_of(records: RecordFile, headers: Headers) -> np.ndarray:
    """Find the records with images, in the order of their keys: int64 [N]."""
    order = np.argsort(records.keys, kind="stable")
    first = int(order[0])
    if not (headers.vectors[first] and headers.image_bytes[first] == 0):
        return _with_images(records, headers, order)
    if records.keys[first] != 0:
        raise UserError(
            f"{records.index}: its first key is {records.keys[first]}, must be 0 in a file that begins "
            "with a header record; "
            "delete it, and the records are found by a scan"
        )
    stop = float(headers.labels[first])
    keys = records.keys[order]
    images = order[(keys >= 1) & (keys < stop)]
    if not stop >= 2 or len(images) != int(stop) - 1:
        raise UserError(
            f"{records.path}: its header record promises {stop - 1:,.0f} images, the index has "
            f"{len(images):,} of them; the two "
            "files do not belong together, or are not whole"
        )
    return _with_images(records, headers, images)


def _with_images(records: RecordFile, headers: Headers, positions: np.ndarray) -> np.ndarray:
    empty = headers.image_bytes[positions] == 0
    if empty.any():
        first = records.name(int(positions[np.argmax(empty)]))
        raise UserError(f"{records.path}: {first} has no image ({empty.sum():,} such records in all)")
    return positions
