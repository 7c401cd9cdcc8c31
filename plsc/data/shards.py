"""Read labelled images from tar shards in WebDataset's layout: `plsc convert faces out --to shards` writes
them.

    Shards("out").num_classes

The shards are indexed once (shard_index.py); then each picture is read by its place, so that order, samplers,
classes held out and resuming are those of a folder of images.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from plsc.data.image_list import ImageFiles, identity_names
from plsc.data.remote_shards import Cache, is_url, open_remote
from plsc.data.shard_index import ShardIndex
from plsc.errors import MissingFileError, UserError


class Shards(ImageFiles):
    """The images of tar shards.

    `shards`: a folder with .tar files, or one .tar file, here or on a server (https://, s3://, oss://, hf://;
    there also several files, `faces-{000..019}.tar`). `cache`: of servers' shards, the keys of
    plsc.data.remote_shards.Cache: folder, bytes, stall and patience. A sample is a picture, `KEY.jpg`, and
    its label beside it, `KEY.cls` or the
    value `label` in `KEY.json`: whole numbers 0, 1, ... without gaps, or names. Where numbered classes have a
    folder each in the shards, `Ann/0001.jpg`, these are their names. Further keys: those of
    plsc.data.image_list.ImageFiles, and of all image formats, see plsc.data.images.EncodedImages.
    """

    def __init__(self, shards: str, cache: dict[str, Any] | None = None, **options):
        self.check(shards=shards, cache=cache, **options)
        super().__init__(**options)
        self.shards = shards
        index = open_remote(shards, Cache.of(cache or {})) if is_url(shards) else ShardIndex.open(shards)
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
        Cache.of(kwargs.get("cache") or {})
        if "shards" in kwargs and is_url(kwargs["shards"]):
            return
        if kwargs.get("cache"):
            raise UserError("cache: is of shards on a server, https://, s3://, oss:// or hf://")
        if "shards" in kwargs and not os.path.exists(kwargs["shards"]):
            raise MissingFileError(f"shards: '{kwargs['shards']}' does not exist (looked in {Path.cwd()})")

    @property
    def title(self) -> str:
        return os.path.basename(
            self.shards.rstrip("/") if is_url(self.shards) else os.path.abspath(self.shards)
        )

    def encoded(self, index: int) -> np.ndarray:
        return self.paths.read(index)
