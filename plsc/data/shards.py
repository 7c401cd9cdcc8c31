"""Read labelled images from tar shards in WebDataset's layout: `plsc convert faces out --to shards` writes them.

    Shards("out").num_classes

The shards are indexed once (shard_index.py); then each picture is read by its place, so that order, samplers, classes held out and
resuming are those of a folder of images.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from plsc.data.image_list import ImageFiles, identity_names
from plsc.data.shard_index import ShardIndex
from plsc.errors import MissingFileError


class Shards(ImageFiles):
    """The images of tar shards.

    `shards`: a folder with .tar files, or one .tar file. A sample is a picture, `KEY.jpg`, and its label beside it, `KEY.cls` or the
    value `label` in `KEY.json`: whole numbers 0, 1, ... without gaps, or names. Where numbered classes have a folder each in the
    shards, `Ann/0001.jpg`, these are their names. Further keys: those of plsc.data.image_list.ImageFiles, and of all image formats, see
    plsc.data.images.EncodedImages.
    """

    def __init__(self, shards: str, **options):
        self.check(shards=shards, **options)
        super().__init__(**options)
        self.shards = shards
        index = ShardIndex.open(shards)
        self.identities = None if index.names is None else self._identities(index.names)
        self._set_files(index.members, index.labels, shards)

    def _identities(self, names: np.ndarray) -> np.ndarray:
        """Name the identities; names that differ only in a number have a meaning in these shards only."""
        if (identity_names(names.tolist()) == names).all():
            return names
        return np.array([f"{self.title}/{name}" for name in names.tolist()])

    @classmethod
    def check(cls, **kwargs) -> None:
        super().check(**kwargs)
        if "shards" in kwargs and not os.path.exists(kwargs["shards"]):
            raise MissingFileError(f"shards: '{kwargs['shards']}' does not exist (looked in {Path.cwd()})")

    @property
    def title(self) -> str:
        return os.path.basename(os.path.abspath(self.shards))

    def encoded(self, index: int) -> np.ndarray:
        return self.paths.read(index)
