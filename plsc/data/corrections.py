"""Correct the labels of a data set by a list that `plsc doctor --trained` has written: relabel or drop
samples.

The list is text, columns apart by TABs, and may be edited; a line begins with what is to be done:

    # plsc corrections 1
    # of 20,760 samples in 2,605 classes, labels 6f0c1d2e3a4b5c6d
    relabel  17  photos/Ann/3.jpg  4  Bob  5.31
    drop     99  photos/Cy/7.jpg   -  -    3.02

The number and name of the sample, those of the class that it becomes, and the score that proposed it. Numbers
are those of the data without the corrections; a list of any other data is refused.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from plsc.data.dataset import Dataset
from plsc.data.joined import Joined
from plsc.data.subset import JoinedSubset, Subset
from plsc.errors import UserError, reading, shown
from plsc.utils.atomic_write import replace_file
from plsc.utils.files import read_regular
from plsc.utils.logging import get_logger

ACTIONS = ("relabel", "drop")
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


def read_corrections(path: str | os.PathLike, data: Dataset) -> list[Correction]:
    """Read a list for `data`. Raises MissingFileError, and UserError with the line: a fault, or other data
    than the list's."""
    with reading(path, missing="no such list of corrections"):
        lines = read_regular(path).decode("utf-8-sig").splitlines()  # some editors put a mark in front
    if lines[:1] != [_TITLE]:
        raise UserError(f"{shown(path)}: is no list of corrections; plsc doctor --trained writes one")
    here = _header(data)
    if lines[1:2] != [here]:
        raise UserError(
            f"{shown(path)}: is of other data than DataLoader.Train.dataset ({here[2:]}); write it anew with plsc doctor --trained"
        )
    names = names_of_classes(data)
    corrections = []
    line_of: dict[int, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        where = f"{shown(path)}:{number}"
        correction = _parse(line, where, data, names)
        if (sample := correction.number) in line_of:
            raise UserError(f"{where}: corrects the same as line {line_of[sample]}; delete one of the two")
        line_of[sample] = number
        corrections.append(correction)
    return corrections


def _parse(line: str, where: str, data: Dataset, names: list[str]) -> Correction:
    """Parse a line, and compare its names with those of the data. Raises UserError."""
    columns = line.split("\t")
    action = columns[0]
    if action not in ACTIONS or len(columns) != 6:
        raise UserError(
            f"{where}: must be {' or '.join(ACTIONS)} and five more columns, with TABs between, got '{shown(line[:80])}'"
        )
    _, sample, sample_name, to, to_name, score = columns
    number = _number(sample, len(data), where)
    _check_name(where, f"sample {sample}", shown(data.name(number)), sample_name)
    if action == "drop":
        return Correction(action, number, -1, _score(score, where))
    to_number = _number(to, data.num_classes, where)
    _check_name(where, f"class {to}", names[to_number], to_name)
    if _range_of(data, int(data.labels[number])) != _range_of(data, to_number):
        raise UserError(
            f"{where}: '{shown(to_name)}' is a class of a set with head: own; choose one of the same set"
        )
    return Correction(action, number, to_number, _score(score, where))


def _check_name(where: str, what: str, actual: str, given: str) -> None:
    if actual != given:
        raise UserError(
            f"{where}: {what} is '{actual}' in the data, '{shown(given)}' in the list; use it with the data that it is of"
        )


def _number(text: str, below: int, where: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) < below):
        raise UserError(f"{where}: must be a number below {below:,}, got '{shown(text)}'")
    return int(text)


def _score(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{where}: the score must be a number, got '{shown(text)}'") from None


def _range_of(data: Dataset, number: int) -> int:
    starts = [start for start, _ in data.ranges or [(0, data.num_classes)]]
    return int(np.searchsorted(starts, number, side="right"))


class Corrected(Subset):
    """A data set without the samples that are dropped, with the labels and classes that a list says.

    Classes that lose all their samples are left out, and the others numbered anew in their order. A sample is
    augmented as without the list. Raises UserError, see `read_corrections`.
    """

    @staticmethod
    def of(data: Dataset, path: str) -> Corrected:
        """Correct a data set, of one set or several, by the list `path`."""
        return (CorrectedJoined if isinstance(data, Joined) else Corrected)(data, path)

    def __init__(self, data: Dataset, path: str):
        corrections = read_corrections(path, data)
        labels, kept = _apply(data, corrections)
        present = np.unique(labels[kept])
        super().__init__(data, np.flatnonzero(kept), labels[kept], present)
        counts = [sum(correction.action == action for correction in corrections) for action in ACTIONS]
        get_logger().info(
            f"{shown(path)}: {counts[0]:,} samples have another label, {counts[1]:,} are dropped: "
            f"{len(self):,} samples in {self.num_classes:,} classes"
        )


class CorrectedJoined(Corrected, JoinedSubset):
    """The same of several sets that are trained on together."""


def _apply(data: Dataset, corrections: list[Correction]) -> tuple[np.ndarray, np.ndarray]:
    """Return the label of each sample, int64 [N], and whether it is kept, bool [N]."""
    labels = data.labels.copy()
    kept = np.ones(len(data), bool)
    for action, number, to, _ in corrections:
        if action == "relabel":
            labels[number] = to
        else:
            kept[number] = False
    return labels, kept
