"""Leave classes out of a data set: `DataLoader.Train.without: [Ann, Bob]`.

    Without(Glyphs(), ["U+0041"]).num_classes

The samples that stay are augmented as before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from plsc.data.dataset import Dataset, class_names
from plsc.data.joined import Joined
from plsc.data.subset import JoinedSubset, Subset
from plsc.errors import UserError


def are_named(data: Dataset, names: Sequence[str]) -> np.ndarray:
    """Say of each class whether its name or its identity, which several ranges may have, is one of `names`:
    bool [C].

    UserError if the classes have no names.
    """
    return np.any([np.isin(of_classes, list(names)) for of_classes in _names(data)], axis=0)


def _names(data: Dataset) -> list[np.ndarray]:
    known = class_names(data)
    if known is None:
        raise UserError("the classes have no names, so none can be left out")
    return [np.array(known), *([] if data.identities is None else [data.identities.astype(str)])]


class Without(Subset):
    """Leaves the classes of some names out of `data`, and numbers the others anew in their order.

    names: see are_named; those that `data` does not have count for nothing. left_out: those that it has.

    Raises UserError if the classes of `data` have no names, or none would stay.
    """

    @staticmethod
    def of(data: Dataset, names: Sequence[str]) -> Without:
        """Leave classes out of a data set, of one set or several."""
        return (WithoutJoined if isinstance(data, Joined) else Without)(data, names)

    def __init__(self, data: Dataset, names: Sequence[str]):
        stays = ~are_named(data, names)
        found = set().union(*(of_classes[~stays].tolist() for of_classes in _names(data)))
        self.left_out = [name for name in names if name in found]
        if not stays.any():
            raise UserError(f"all {len(stays)} classes are left out")
        kept = np.flatnonzero(stays[data.labels])
        super().__init__(data, kept, data.labels[kept], np.flatnonzero(stays))


class WithoutJoined(Without, JoinedSubset):
    """The same of several sets that are trained on together."""
