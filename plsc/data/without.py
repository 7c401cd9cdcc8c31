"""Leave classes out of a data set: `DataLoader.Train.without: [Ann, Bob]`.

    Without(Glyphs(), ["U+0041"]).num_classes

The samples that stay are augmented as before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from plsc.data.dataset import Dataset, class_names
from plsc.data.subset import Subset
from plsc.errors import UserError


class Without(Subset):
    """Leaves the classes of some names out of `data`, and numbers the others anew in their order.

    names: of classes; those that `data` does not have count for nothing. left_out: those that it has.

    Raises UserError if the classes of `data` have no names, or none would stay.
    """

    def __init__(self, data: Dataset, names: Sequence[str]):
        known = class_names(data)
        if known is None:
            raise UserError("the classes have no names, so none can be left out")
        stays = ~np.isin(known, list(names))
        self.left_out = [name for name, stay in zip(known, stays.tolist()) if not stay]
        if not stays.any():
            raise UserError(f"all {len(known)} classes are left out")
        kept = np.flatnonzero(stays[data.labels])
        super().__init__(data, kept, data.labels[kept], np.flatnonzero(stays))
