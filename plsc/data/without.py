"""Leave classes out of a data set: `DataLoader.Train.without: [Ann, Bob]`.

    Without(Glyphs(), ["U+0041"]).num_classes

The samples that stay are augmented as before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from plsc.data.dataset import Dataset, class_names
from plsc.data.preprocessing import Preprocessing
from plsc.errors import UserError


class Without(Dataset):
    """Leaves the classes of some names out of `data`, and numbers the others anew in their order.

    names: of classes; those that `data` does not have count for nothing. left_out: those that it has.

    Raises UserError if the classes of `data` have no names, or none would stay.
    """

    def __init__(self, data: Dataset, names: Sequence[str]):
        known = class_names(data)
        if known is None:
            raise UserError("the classes have no names, so none can be left out")
        self._data = data
        stays = ~np.isin(known, list(names))
        self.left_out = [name for name, stay in zip(known, stays.tolist()) if not stay]
        if not stays.any():
            raise UserError(f"all {len(known)} classes are left out")
        number = np.cumsum(stays) - 1
        self._samples = np.flatnonzero(stays[data.labels])
        self.labels = number[data.labels[self._samples]]
        self.num_classes = int(stays.sum())
        self.identities = data.identities[stays]

    @property
    def preprocessing(self) -> Preprocessing:
        return self._data.preprocessing

    @property
    def title(self) -> str:
        return self._data.title

    def sample(self, index: int, epoch: int) -> np.ndarray:
        return self._data.sample(int(self._samples[index]), epoch)

    def name(self, index: int) -> str:
        return self._data.name(int(self._samples[index]))

    def substitutes(self, index: int) -> tuple[int, int]:
        start, stop = self._data.substitutes(int(self._samples[index]))
        return tuple(np.searchsorted(self._samples, [start, stop]).tolist())
