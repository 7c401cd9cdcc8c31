"""Take some samples of a data set, augmented as in the whole: what Without and Corrected have in common."""

from __future__ import annotations

import numpy as np

from plsc.data.dataset import Dataset
from plsc.data.joined import Joined
from plsc.data.preprocessing import Preprocessing
from plsc.errors import UserError, shown


class Subset(Dataset):
    """Takes some samples of `data`, and numbers the classes that stay anew in their order.

    Args:
        kept: indices of the samples, rising, int64.
        labels: of these, as `data` numbers classes; they need not be those that `data` gives.
        classes: those that stay, as `data` numbers them, rising, int64.

    Raises UserError if a range of classes is left with less than two.
    """

    def __init__(self, data: Dataset, kept: np.ndarray, labels: np.ndarray, classes: np.ndarray):
        self._data = data
        self._kept = kept
        self.labels = np.searchsorted(classes, labels)
        self.num_classes = len(classes)
        self.identities = None if data.identities is None else data.identities[classes]
        self._names = None if data.class_names is None else data.class_names[classes]
        if data.ranges is not None:
            self.ranges = [tuple(np.searchsorted(classes, bounds).tolist()) for bounds in data.ranges]
            if any(stop - start < 2 for start, stop in self.ranges):
                raise UserError("leaves a set with less than 2 classes")

    @property
    def class_names(self) -> np.ndarray | None:
        return self._names

    @property
    def preprocessing(self) -> Preprocessing:
        return self._data.preprocessing

    @property
    def title(self) -> str:
        return self._data.title

    def sample(self, index: int, epoch: int) -> np.ndarray:
        return self._data.sample(int(self._kept[index]), epoch)

    def name(self, index: int) -> str:
        return self._data.name(int(self._kept[index]))

    def substitutes(self, index: int) -> tuple[int, int]:
        start, stop = np.searchsorted(self._kept, self._data.substitutes(int(self._kept[index])))
        return int(start), int(stop)


class JoinedSubset(Subset, Joined):
    """The same of several sets that are trained on together. Raises UserError, too, if a set is left without
    a sample."""

    def __init__(self, data: Joined, kept: np.ndarray, labels: np.ndarray, classes: np.ndarray):
        super().__init__(data, kept, labels, classes)
        self.parts = data.parts
        self.own = data.own
        self.titles = data.titles
        self.starts = np.searchsorted(kept, data.starts)
        for title, count in zip(self.titles, np.diff(self.starts).tolist()):
            if count == 0:
                raise UserError(
                    f"leaves no sample of '{shown(title)}'; take that set out of DataLoader.Train.dataset"
                )
