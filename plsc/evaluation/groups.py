"""Compare groups of people (or products): the false accepts within each, and a threshold of its own.

A file names the group of an identity or of an image, a line each. A pair is of a group if both of its images
are; a pair of two groups is of none. Try it:

    read_groups("groups.csv")  # {"Ann": "a", "Bob": "b", "Cy/Cy_0001.jpg": "a"}
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plsc.data.dataset import PairSet
from plsc.data.pairs import open_text
from plsc.errors import UserError, shown
from plsc.evaluation.calibration import thresholds
from plsc.evaluation.roc import roc_curve
from plsc.utils.calibration import MOST_GROUPS, Threshold

_SHOWN = 3  # bad lines, or names


@dataclass(frozen=True)
class Group:
    """The pairs within a group.

    Attributes:
        same, different: number of pairs.
        thresholds: for the FARs that they allow.
        far_at_common: the share of its different pairs that the thresholds of all pairs accept; empty without different pairs.
    """

    name: str
    same: int
    different: int
    thresholds: list[Threshold]
    far_at_common: list[float]

    def numbers(self) -> dict[str, Any]:
        """Return the numbers of results.json."""
        return {
            "same": self.same,
            "different": self.different,
            "thresholds": [point.model_dump() for point in self.thresholds],
            "far_at_common": self.far_at_common,
        }


def read_groups(path: str) -> dict[str, str]:
    """Read the group of each name: lines of `name<TAB>group`, or with a comma. UserError names bad lines."""
    groups: dict[str, str] = {}
    bad = []
    for number, line in enumerate(open_text(path), start=1):
        if not line.strip():
            continue
        try:
            fields = [
                field.strip() for field in (line.split("\t") if "\t" in line else next(csv.reader([line])))
            ]
        except csv.Error:
            fields = []
        if len(fields) != 2 or not all(fields):
            bad.append(f"line {number}: must be 'name<TAB>group', or with a comma (got '{shown(line[:60])}')")
        elif groups.setdefault(fields[0], fields[1]) != fields[1]:
            bad.append(
                f"line {number}: '{shown(fields[0])}' is in group '{shown(groups[fields[0]])}' already"
            )
    if bad:
        more = f"; {len(bad)} bad lines in all" if len(bad) > _SHOWN else ""
        raise UserError(f"--groups: {shown(path)}: {'; '.join(bad[:_SHOWN])}{more}")
    if not groups:
        raise UserError(f"--groups: {shown(path)}: is empty; it needs lines of 'name<TAB>group'")
    return groups


@dataclass(frozen=True)
class Grouping:
    """The groups of a set's pairs.

    Attributes:
        names: of the groups, sorted.
        of_pair: int64 [P], the place of each pair's group in `names`; -1: of none.
        notes: what of the file and of the set is not in a group.
    """

    names: list[str]
    of_pair: np.ndarray
    notes: list[str]


def group_pairs(groups: Mapping[str, str], data: PairSet) -> Grouping:
    """Find the group of each pair: that of both images, by their own names, else by their identities.

    UserError for too many groups, and if no name of `groups` is in the set.
    """
    identities = (
        [None] * data.num_images if data.identity_of is None else data.identity_of.astype(str).tolist()
    )
    used = [
        next((name for name in (data.image_name(index), identity) if name in groups), None)
        for index, identity in enumerate(identities)
    ]
    lacking = groups.keys() - used
    if len(lacking) == len(groups):
        of_whom = f"'{shown(identities[0])}'" if identities[0] is not None else "not known"
        raise UserError(
            f"--groups: none of its {len(groups):,} names is in '{data.title}', whose first image is "
            f"'{shown(data.image_name(0))}', its identity {of_whom}"
        )
    names = sorted({groups[name] for name in used if name is not None})
    if len(names) > MOST_GROUPS:
        raise UserError(
            f"--groups: {len(names):,} groups are too many; name at most {MOST_GROUPS:,}, with several identities each"
        )
    places = {name: place for place, name in enumerate(names)}
    first, second = np.array([places.get(groups.get(name), -1) for name in used])[data.pairs.T]
    of_pair = np.where(first == second, first, -1)
    notes = [
        f"Pairs within a group: {np.sum(of_pair >= 0):,} of {len(of_pair):,}; the others are of two groups, or have an image of none."
    ]
    if lacking:
        examples = ", ".join(map(shown, sorted(lacking)[:_SHOWN]))
        notes.append(
            f"Names in --groups that are not in the set: {len(lacking):,} of {len(groups):,}, such as {examples}."
        )
    return Grouping(names, of_pair, notes)


def compare_groups(
    grouping: Grouping,
    similarity: np.ndarray,
    same: np.ndarray,
    identities: np.ndarray | None,
    common: Sequence[Threshold],
) -> list[Group]:
    """Find the thresholds of each group, by the pairs [P] of `plsc.evaluation.Verification`.

    Args:
        identities: of each pair, int64 [P, 2]; None: not known. common: the thresholds of all pairs.
    """
    compared = []
    order = np.argsort(grouping.of_pair, kind="stable")
    places = np.arange(len(grouping.names) + 1)
    bounds = np.searchsorted(grouping.of_pair, places, sorter=order).tolist()
    for name, start, stop in zip(grouping.names, bounds, bounds[1:]):
        chosen = order[start:stop]
        different = chosen[~same[chosen]]
        cosines = similarity[different]
        own = []
        if len(cosines):
            roc = roc_curve(similarity[chosen], same[chosen])
            own = thresholds(
                roc,
                cosines,
                [point.far for point in common],
                None if identities is None else identities[different],
            )
        compared.append(
            Group(
                name,
                len(chosen) - len(different),
                len(different),
                own,
                [float(np.mean(cosines > point.cosine)) for point in common] if len(cosines) else [],
            )
        )
    return compared
