"""Count images that cannot be decoded: a few of them are replaced (batch.py) and logged, many of them end the
training.

A few damaged files in millions must not end a run; a set of which every fifth image is damaged must not begin
one. To see what is logged when sample 7 of a batch of 32 was replaced by sample 3:

    CorruptImages(dataset, share=0.01, per_epoch=1000).note(32, [(0, 7, 3)])
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from plsc.data.batch import Replacement, make_sample
from plsc.data.dataset import Dataset
from plsc.data.transforms import PROBES, generator
from plsc.errors import CorruptImageError, shown
from plsc.utils.logging import get_logger, warn

PROBE = 256  # images that are tried before the first step
NAMES_SHOWN = 3


def allowed(share: float, seen: int) -> int:
    """Compute how many corrupt images among `seen` are allowed where `share` of the whole set is: the mean of
    a Poisson distribution, 5 of its standard deviations and 3. Less than one allowed set in a million is
    refused."""
    mean = share * seen
    return int(mean + 5 * math.sqrt(mean) + 3) if share else 0


class CorruptImages:
    """Counts the images that one rank has replaced in the current epoch.

    `share`: the share of the `per_epoch` images of this rank that may be replaced in an epoch (rounded down).
    """

    def __init__(self, dataset: Dataset, share: float, per_epoch: int):
        self.dataset = dataset
        self.share = share
        self.per_epoch = per_epoch
        self.limit = int(share * per_epoch + 1e-9)  # 0.29 * 100 is a little less than 29
        self._logged: set[int] = set()
        self.start_epoch()

    def start_epoch(self, seen: int = 0, replaced: int = 0) -> None:
        """Start an epoch, or go on in one that was stopped after `seen` images."""
        self.replaced = replaced
        self._seen = seen
        self._corrupt: list[int] = []

    def note(self, size: int, replacements: Sequence[Replacement]) -> None:
        """Count a batch of `size` images and log its replacements. CorruptImageError if there are too
        many."""
        self._seen += size
        for _, index, substitute in replacements:
            self.replaced += 1
            self._corrupt.append(index)
            if index not in self._logged:  # it comes again in each epoch
                self._logged.add(index)
                get_logger().warning(
                    f"cannot decode {shown(self.dataset.name(index))}: replaced by sample {substitute}; "
                    f"{self.replaced} replaced so far (at most {self.limit} an epoch)"
                )
        if self.replaced > min(self.limit, allowed(self.share, self._seen)):
            raise self._too_many(self._corrupt, self.replaced, self._seen)

    def probe(self, seed: int) -> None:
        """Decode PROBE images of the whole set, the same on every rank: if too many are corrupt, all ranks
        stop now."""
        count = len(self.dataset)
        tried = np.sort(generator(seed, use=PROBES).choice(count, min(count, PROBE), replace=False))
        corrupt = []
        image = self.dataset.preprocessing.empty(1)[0]
        for index in tried.tolist():
            try:
                make_sample(self.dataset, 0, index, image)
            except CorruptImageError:
                corrupt.append(index)
        if len(corrupt) > min(int(self.share * count + 1e-9), allowed(self.share, len(tried))):
            raise self._too_many(corrupt, len(corrupt), len(tried))
        if corrupt:
            warn(
                f"{len(corrupt)} of {len(tried)} images tried cannot be decoded: {self._names(corrupt, len(corrupt))}; others will replace them"
            )

    def _names(self, corrupt: list[int], count: int) -> str:
        names = [shown(self.dataset.name(index)) for index in corrupt[:NAMES_SHOWN]]
        return ", ".join(names + ["..."] * (count > len(names)))

    def _too_many(self, corrupt: list[int], count: int, seen: int) -> CorruptImageError:
        """Make the error for `count` corrupt images, of which those before a resume are not in `corrupt`."""
        return CorruptImageError(
            f"{count} of {seen:,} images ({100 * count / seen:.2g} %) cannot be decoded: {self._names(corrupt, count)}; "
            f"DataLoader.Train.max_corrupt allows {100 * self.share:g} %, {self.limit:,} of a rank's {self.per_epoch:,} an epoch; "
            "plsc doctor lists them all: mend or remove them, or raise max_corrupt"
        )
