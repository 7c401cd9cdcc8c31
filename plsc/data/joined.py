"""Join several data sets into one to train on: their samples one set after the other, their classes merged or
apart.

    merged   the sets without `own`: identities of the same name are one class, whichever of these sets has them
    own      a set whose classes are a range of their own, with a softmax of its own

Ranges of classes lie one after the other, in the order of the first set of each. Which samples an epoch has
is up to a sampler (samplers.py), what a range means to the loss up to the head. To see the classes of two
sets:

    Joined({"first": Glyphs(faces=8), "second": Glyphs(faces=4)}, own=[False, True]).ranges
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from plsc.data.dataset import Dataset, check_labels, same_form
from plsc.data.preprocessing import Preprocessing
from plsc.errors import UserError, shown
from plsc.utils.logging import get_logger, warn


class Joined(Dataset):
    """Joins data sets. Samples are numbered set after set; each set makes, and augments, its own.

    Args:
        parts: the sets by the keys that messages name them by.
        own: of each set, whether its classes are a range of their own; the others are merged.

    Attributes:
        parts: the sets. titles: of the sets, numbered where one would come twice. own: as given.
        starts: the first sample of each set, and the number of all, int64 [sets + 1].
        ranges: [start, stop) of the classes with a softmax of their own.
        identities: repeats those that several ranges have; None where no set has any. class_names: differ all.

    Raises UserError, which begins with the key of a set: its samples are not like those of the first; it is
    to be merged and has no names, or none that compare; or it has a range of its own with one class.
    """

    def __init__(self, parts: Mapping[str, Dataset], own: Sequence[bool]):
        keys = list(parts)
        self.parts = list(parts.values())
        self.own = list(own)
        for key, part, apart in zip(keys, self.parts, own):
            check_labels(part)
            _check_preprocessing(key, part.preprocessing, keys[0], self.parts[0].preprocessing)
            if apart and part.num_classes < 2:
                raise UserError(f"{key}: has 1 class, and nothing to tell it from with head: own")
        self.titles = _different(part.title for part in self.parts)
        self.starts = np.cumsum([0, *map(len, self.parts)], dtype=np.int64)
        merged = [number for number, apart in enumerate(own) if not apart]
        if len(merged) > 1:
            _check_names({keys[number]: self.parts[number] for number in merged})
        classes = self._number_classes(merged)
        self.labels = np.concatenate([of[part.labels] for of, part in zip(classes, self.parts)])
        self._name_classes(classes)
        if len(merged) > 1:
            self._report(merged)

    def _number_classes(self, merged: list[int]) -> list[np.ndarray]:
        """Set ranges and num_classes; return the number of each class of each set, int64 [classes of the
        set]."""
        classes = [np.arange(part.num_classes) for part in self.parts]
        if len(merged) > 1:
            together = number_names([self.parts[number].identities for number in merged])
            for number, of_part in zip(merged, together):
                classes[number] = of_part
        self.ranges = []
        self._range_titles: list[str] = []  # of the first set of each range
        self.num_classes = 0
        for number, title in enumerate(self.titles):
            members = merged if number in merged else [number]
            if number != members[0]:
                continue
            start = self.num_classes
            self.num_classes += 1 + max(int(classes[member].max()) for member in members)
            for member in members:
                classes[member] = classes[member] + start
            self.ranges.append((start, self.num_classes))
            self._range_titles.append(title)
        return classes

    def _name_classes(self, classes: list[np.ndarray]) -> None:
        """Set identities and class_names: a later range has its set's title in front of a name that an
        earlier one has."""
        names = [""] * self.num_classes
        for title, of_part, part in zip(self.titles, classes, self.parts):
            unnamed = (f"{title}/{number}" for number in range(part.num_classes))
            given = unnamed if part.identities is None else map(str, part.identities.tolist())
            for number, name in zip(of_part.tolist(), given):
                names[number] = names[number] or name
        kinds = {part.identities.dtype.kind for part in self.parts if part.identities is not None}
        self.identities = np.array(names) if kinds else None
        if kinds == {"i"} and all(part.identities is not None for part in self.parts):
            self.identities = self.identities.astype(np.int64)
        used: set[str] = set()
        for title, (start, stop) in zip(self._range_titles, self.ranges):
            for number in range(start, stop):
                while names[number] in used:
                    names[number] = f"{title}/{names[number]}"
                used.add(names[number])
        self._names = np.array(names)

    def _report(self, merged: list[int]) -> None:
        """Log how many identities several of the merged sets have."""
        separate = sum(self.parts[number].num_classes for number in merged)
        start, stop = self.ranges[self._range_titles.index(self.titles[merged[0]])]
        titles = ", ".join(shown(self.titles[number]) for number in merged)
        if stop - start == separate:
            warn(
                f"{titles}: no identity of one is in another by name, so none are merged; where the same people may be in them under "
                "other names, give one head: own"
            )
        get_logger().info(f"{titles}: {separate:,} identities are {stop - start:,} classes, merged by name")

    @property
    def preprocessing(self) -> Preprocessing:
        return self.parts[0].preprocessing

    @property
    def class_names(self) -> np.ndarray:
        return self._names

    @property
    def title(self) -> str:
        return " + ".join(self.titles)

    def sets_of(self, indices: np.ndarray) -> np.ndarray:
        """Find the sets that samples are of, int64 [n]."""
        return np.searchsorted(self.starts, indices, side="right") - 1

    def sample(self, index: int, epoch: int) -> np.ndarray:
        number, own_index = self._place(index)
        return self.parts[number].sample(own_index, epoch)

    def name(self, index: int) -> str:
        number, own_index = self._place(index)
        return f"{self.titles[number]}: {self.parts[number].name(own_index)}"

    def substitutes(self, index: int) -> tuple[int, int]:
        number, own_index = self._place(index)
        start, stop = self.parts[number].substitutes(own_index)
        return int(self.starts[number]) + start, int(self.starts[number]) + stop

    def _place(self, index: int) -> tuple[int, int]:
        number = int(self.sets_of(np.int64(index)))
        return number, index - int(self.starts[number])


def number_names(names: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Number names from 0 in the order of their first appearance, the same name alike in all arrays: int64
    arrays."""
    joined = np.concatenate([same_form(array) for array in names])
    _, first, place = np.unique(joined, return_index=True, return_inverse=True)
    order = np.empty(len(first), np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    return np.split(order[place.ravel()], np.cumsum([len(array) for array in names])[:-1])


def _different(titles: Iterable[str]) -> list[str]:
    """Add a number to each title that an earlier one has: "a", "b", "a 2"."""
    different: list[str] = []
    for title in titles:
        count = 1
        name = title
        while name in different:
            count += 1
            name = f"{title} {count}"
        different.append(name)
    return different


def _check_preprocessing(key: str, theirs: Preprocessing, first_key: str, first: Preprocessing) -> None:
    differences = [
        f"{what} {value} ({other} in {first_key})" for what, value, other in theirs.differences(first)
    ]
    if differences:
        raise UserError(
            f"{key}: its samples have {', '.join(differences)}; sets that are trained on together must have the same"
        )


def _check_names(parts: Mapping[str, Dataset]) -> None:
    """Refuse sets to merge whose identities do not compare."""
    (first_key, first), *_ = parts.items()
    kinds = {"U": "text", "i": "numbers"}
    for key, part in parts.items():
        if part.identities is None:
            raise UserError(
                f"{key}: its identities have no names, so nothing shows which of them another set has, too; give it head: own, or "
                "convert it to folders with the identities' names"
            )
        here, there = part.identities.dtype.kind, first.identities.dtype.kind
        if here != there:
            raise UserError(
                f"{key}: its identities are {kinds.get(here, here)}, those of {first_key} {kinds.get(there, there)}, so none are "
                "the same; give it head: own"
            )
