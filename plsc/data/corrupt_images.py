"""Count images that cannot be decoded.

A few such images are replaced (batch.py) and logged. Many such images end the training.

A few damaged files among millions must not end a run. A set in which every fifth image is damaged must not
start a run. To see the log message for sample 7, which sample 3 replaces in row 0 of a batch:

    CorruptImages(dataset).note([(0, 7, 3)])
"""

from collections.abc import Sequence

import numpy as np

from plsc.data.batch import Replacement
from plsc.data.dataset import Dataset, make_sample, name_of
from plsc.data.images import EncodedImages, is_dark, why_dark
from plsc.data.transforms import PROBES, generator
from plsc.errors import CorruptImageError, escape
from plsc.utils.logging import get_logger, warn_on_rank_0

# In one epoch, all ranks together may replace len(dataset) // ONE_IN images, whatever the epoch's length is.
ONE_IN = 100
PROBE = 256  # images that are tried before the first step
CHANCE = 3  # a share of corrupt images above so many times the allowed share is not due to chance
NAMES_SHOWN = 3
REMEDY = f"at most 1 in {ONE_IN} may be replaced; plsc doctor lists them all: repair or remove them"


class CorruptImages:
    """Counts the images that one rank has replaced in an epoch.

    The limit applies to all ranks together, so that it does not depend on the world size. The trainer
    sums the ranks' counts in each step, and ends the training if the sum exceeds the limit. The count
    includes the next step's batch, which the loader has already made. It starts at 0 in each epoch, and also
    if a run is resumed within an epoch.

    Attributes:
        limit: how many images all ranks together may replace in one epoch: len(dataset) // ONE_IN.
        replaced: indices of the images that this rank has replaced in the current epoch.
    """

    def __init__(self, dataset: Dataset):
        self.dataset = dataset
        self.limit = len(dataset) // ONE_IN
        self._logged: set[int] = set()
        self.start_epoch()

    def start_epoch(self) -> None:
        """Reset the count."""
        self.replaced: list[int] = []

    def note(self, replacements: Sequence[Replacement]) -> None:
        """Count and log a batch's replacements."""
        for _, index, substitute in replacements:
            self.replaced.append(index)
            if index not in self._logged:  # the same image is replaced in each epoch
                self._logged.add(index)
                name = escape(name_of(self.dataset.name, index))
                get_logger().warning(
                    f"cannot decode {name}: replaced by sample {substitute}; "
                    f"{len(self.replaced)} replaced so far (at most {self.limit} per epoch, over all ranks)"
                )

    def refuse(self, replaced: Sequence[int]) -> None:
        """Raise CorruptImageError, which names the images that the ranks have replaced in this epoch."""
        found = f"{len(replaced)} images of an epoch cannot be decoded"
        raise CorruptImageError(f"{found}: {self._names(replaced)}; {REMEDY}")

    def probe(self, seed: int) -> None:
        """Decode PROBE images from the whole set. They are the same on every rank.

        Raises CorruptImageError on all ranks if more are corrupt than the limit for an epoch, or more than
        CHANCE / ONE_IN of those that are tried. Warns if most are almost empty, except if the set contains no
        pictures.
        """
        count = len(self.dataset)
        tried = np.sort(generator(seed, use=PROBES).choice(count, min(count, PROBE), replace=False))
        corrupt, dark = [], []
        shape, darkest = self.dataset.preprocessing.shape, self.dataset.preprocessing.darkest
        for index in tried.tolist():
            try:
                image = make_sample(self.dataset, index, 0, shape)
            except CorruptImageError:
                corrupt.append(index)
                continue
            if darkest is not None and is_dark(image):
                dark.append(index)
        if 2 * len(dark) > len(tried):
            data = self.dataset.encoded(dark[0]) if isinstance(self.dataset, EncodedImages) else None
            image = make_sample(self.dataset, dark[0], 0, shape)
            why = f"{escape(name_of(self.dataset.name, dark[0]))}: {why_dark(data, image)}"
            warn_on_rank_0(f"{len(dark)} of {len(tried)} images tried are almost empty: {why}")
        if not corrupt:
            return
        found = f"{len(corrupt)} of {len(tried)} images tried cannot be decoded: {self._names(corrupt)}"
        if len(corrupt) > min(count // ONE_IN, CHANCE * len(tried) // ONE_IN):
            raise CorruptImageError(f"{found}; {REMEDY}")
        warn_on_rank_0(f"{found}; others will replace them")

    def _names(self, corrupt: Sequence[int]) -> str:
        names = [escape(name_of(self.dataset.name, index)) for index in corrupt[:NAMES_SHOWN]]
        return ", ".join(names + ["..."] * (len(corrupt) > len(names)))
