"""Join several data sets into one training set.

Each set's samples and classes follow those of the set before it. Try it:
`Joined({"a": Synthetic(), "b": Synthetic()}).num_classes`.
"""

from collections.abc import Mapping

import numpy as np

from plsc.data.dataset import Dataset, check_labels, check_preprocessing
from plsc.utils.preprocessing import Preprocessing


class Joined(Dataset):
    """Joins data sets. Each set makes and augments its own samples.

    A person in two sets is two classes.

    Args:
        parts: the sets by their keys in the config, which messages use.

    Raises UserError, which begins with a set's key, if its preprocessing differs from the
    first set's.
    """

    def __init__(self, parts: Mapping[str, Dataset]):
        self._parts = list(parts.values())
        self.title = " + ".join(part.title for part in self._parts)
        for key, part in parts.items():
            check_labels(part)
            check_preprocessing(part.preprocessing, self.preprocessing, key, f"{next(iter(parts))} has")
        self._starts = np.cumsum([0, *map(len, self._parts)])
        class_starts = np.cumsum([0, *(part.num_classes for part in self._parts)])
        self.num_classes = int(class_starts[-1])
        self.labels = np.concatenate(
            [part.labels + start for part, start in zip(self._parts, class_starts.tolist())]
        )
        identities = [part.identities for part in self._parts]
        if (
            all(names is not None for names in identities)
            and len({names.dtype.kind for names in identities}) == 1
        ):
            self.identities = np.concatenate(identities)
            self._names = _different_names(self.identities, self._parts)

    @property
    def preprocessing(self) -> Preprocessing:
        return self._parts[0].preprocessing

    @property
    def class_names(self) -> list[str] | None:
        return None if self.identities is None else self._names

    def sample(self, index: int, epoch: int) -> np.ndarray:
        number, own_index = self._place(index)
        return self._parts[number].sample(own_index, epoch)

    def name(self, index: int) -> str:
        number, own_index = self._place(index)
        return f"{self._parts[number].title}: {self._parts[number].name(own_index)}"

    def _place(self, index: int) -> tuple[int, int]:
        """Return which set contains a sample, and the sample's index in that set."""
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return number, index - int(self._starts[number])


def _different_names(identities: np.ndarray, parts: list[Dataset]) -> list[str]:
    """Return the classes' names as text. A name that an earlier set has gets its set's number as a prefix."""
    numbers = np.repeat(np.arange(1, len(parts) + 1), [part.num_classes for part in parts]).tolist()
    first: dict[str, int] = {}
    return [
        name if first.setdefault(name, number) == number else f"{number}/{name}"
        for name, number in zip(map(str, identities.tolist()), numbers)
    ]
