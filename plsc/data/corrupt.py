"""Count images that cannot be decoded: a few are replaced (batch.py) and logged, many end the training.

A few damaged files in millions must not end a run; a set of which every fifth image is damaged must not begin
one. To see what is logged when sample 7 of a batch was replaced by sample 3:

    CorruptImages(dataset, share=0.01, per_epoch=1000).note([(0, 7, 3)])
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from plsc.data.batch import Replacement, make_sample
from plsc.data.dataset import Dataset
from plsc.data.images import EncodedImages, is_dark, why_dark
from plsc.data.transforms import PROBES, generator
from plsc.errors import CorruptImageError, shown
from plsc.utils.logging import get_logger, warn

PROBE = 256  # images that are tried before the first step
CHANCE = 3  # times the share that is allowed: more among the images tried is no chance
NAMES_SHOWN = 3


class CorruptImages:
    """Counts the images that one rank has replaced in the current epoch.

    `share`: the share of the `per_epoch` images of this rank that may be replaced in an epoch (rounded down).
    """

    def __init__(self, dataset: Dataset, share: float, per_epoch: int):
        self.dataset = dataset
        self.share = share
        self.limit = _part(share, per_epoch)
        self._logged: set[int] = set()
        self.start_epoch()

    def start_epoch(self, replaced: int = 0) -> None:
        """Start an epoch, or go on in one in which so many were replaced."""
        self.replaced = replaced
        self._corrupt: list[int] = []

    def note(self, replacements: Sequence[Replacement]) -> None:
        """Count and log the replacements of a batch. CorruptImageError if there are too many."""
        for _, index, substitute in replacements:
            self.replaced += 1
            self._corrupt.append(index)
            if index not in self._logged:  # it comes again in each epoch
                self._logged.add(index)
                get_logger().warning(
                    f"cannot decode {shown(self.dataset.name(index))}: replaced by sample {substitute}; "
                    f"{self.replaced} replaced so far (at most {self.limit} an epoch)"
                )
        if self.replaced > self.limit:
            raise CorruptImageError(
                f"{self.replaced} images of an epoch cannot be decoded: {self._names(self._corrupt)}; "
                f"{self._remedy()}"
            )

    def probe(self, seed: int) -> None:
        """Decode PROBE images of the whole set, the same on every rank: if too many are corrupt, all ranks
        stop now."""
        count = len(self.dataset)
        tried = np.sort(generator(seed, use=PROBES).choice(count, min(count, PROBE), replace=False))
        corrupt = []
        dark, count_dark = "", 0
        image = self.dataset.preprocessing.empty(1)[0]
        for index in tried.tolist():
            try:
                make_sample(self.dataset, 0, index, image)
            except CorruptImageError:
                corrupt.append(index)
                continue
            if is_dark(image):
                dark = dark or self._why_dark(index, image)
                count_dark += 1
        if 2 * count_dark > len(tried):
            warn(f"{count_dark} of {len(tried)} images tried show next to nothing: {dark}")
        if not corrupt:
            return
        found = f"{len(corrupt)} of {len(tried)} images tried cannot be decoded: {self._names(corrupt)}"
        if len(corrupt) > min(_part(self.share, count), _part(CHANCE * self.share, len(tried))):
            raise CorruptImageError(f"{found}; {self._remedy()}")
        warn(f"{found}; others will replace them")

    def _why_dark(self, index: int, image: np.ndarray) -> str:
        data = self.dataset.encoded(index) if isinstance(self.dataset, EncodedImages) else None
        return f"{shown(self.dataset.name(index))}: {why_dark(data, image)}"

    def _names(self, corrupt: list[int]) -> str:
        names = [shown(self.dataset.name(index)) for index in corrupt[:NAMES_SHOWN]]
        return ", ".join(names + ["..."] * (len(corrupt) > len(names)))

    def _remedy(self) -> str:
        return (
            f"DataLoader.Train.max_corrupt allows {100 * self.share:g} %, {self.limit:,} of a rank's "
            "images an "
            "epoch; plsc doctor lists them all: mend or remove them, or raise max_corrupt"
        )


def _part(share: float, count: int) -> int:
    return int(share * count + 1e-9)  # 0.29 * 100 is a little less than 29
