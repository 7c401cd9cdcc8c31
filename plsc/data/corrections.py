"""Write the corrections that `plsc doctor --trained` proposes: samples to relabel or to drop.

The list is text, columns apart by TABs, and may be edited; a line begins with what is to be done:

    # plsc corrections 1
    # of 20,760 samples in 2,605 classes, labels 6f0c1d2e3a4b5c6d
    relabel  17  photos/Ann/3.jpg  4  Bob  5.31
    drop     99  photos/Cy/7.jpg   -  -    3.02

The number and name of the sample, those of the class that it becomes, and the score that proposed it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from plsc.data.dataset import Dataset
from plsc.errors import shown
from plsc.utils.atomic_write import replace_file

_TITLE = "# plsc corrections 1"
_NOTHING = "-"


class Correction(NamedTuple):
    """A line of a list.

    `number`: of the sample. `to`: the class that it becomes; -1 for drop.
    """

    action: str
    number: int
    to: int
    score: float


def names_of_classes(data: Dataset) -> list[str]:
    """Name the classes for a list and messages, by their numbers where they have no names."""
    names = data.class_names
    return (
        [f"class {number}" for number in range(data.num_classes)] if names is None else [*map(shown, names)]
    )


def write_corrections(
    path: str | os.PathLike,
    data: Dataset,
    corrections: Iterable[Correction],
    proposed: Iterable[Correction] = (),
) -> None:
    """Write a list for `data`. Lines `proposed` have a # in front, which keeps them from being applied."""
    names = names_of_classes(data)

    def line_of(correction: Correction) -> str:
        action, number, to, score = correction
        to_columns = (_NOTHING, _NOTHING) if to < 0 else (str(to), names[to])
        return "\t".join((action, str(number), shown(data.name(number)), *to_columns, f"{score:.3f}"))

    lines = [_TITLE, _header(data), *map(line_of, corrections)]
    lines += [f"# {line_of(correction)}" for correction in proposed]
    replace_file(path, "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))


def _header(data: Dataset) -> str:
    """Describe the data that a list is of: its counts, and a hash of all labels and class names."""
    digest = hashlib.blake2b(np.ascontiguousarray(data.labels, "<i8"), digest_size=8)
    digest.update("\n".join(names_of_classes(data)).encode("utf-8", "backslashreplace"))
    return f"# of {len(data):,} samples in {data.num_classes:,} classes, labels {digest.hexdigest()}"
