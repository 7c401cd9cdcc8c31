"""Classes by name: which row of one run's head belongs to which class of another's, and such rows read. No Paddle, no ranks.

The name of an identity is the only thing that lasts when people come and go: the number of a class is its place in a list. Try it:

    match_names(["Ann", "Bob"], ["Bob", "Cy"])   # rows [1, -1]: Bob has row 1, Cy has none; Ann is dropped
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from plsc.errors import UserError

MOST_TOLD = 10


def match_names(there: Sequence[str], here: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Of each name of `here` its place in `there`, -1 where it is not: int64 [len(here)]; and the names of `there` that are not
    in `here`, in their order. The names of each must differ."""
    place = {name: number for number, name in enumerate(there)}
    rows = np.fromiter((place.pop(name, -1) for name in here), np.int64, len(here))
    return rows, list(place)


def refuse_twins(names: Sequence[str], where: str) -> None:
    """Raise UserError, which begins with `where`, if two classes have the same name."""
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise UserError(f"{where}: {count} classes are called '{name}'; a name is of one class")


def pick_rows(read: Callable[[int, int], np.ndarray], rows: np.ndarray) -> np.ndarray:
    """The rows with these numbers, int64 [n] in any order, n > 0: [n, ...]. `read` is (start, stop) -> the rows between, and is
    asked for no others."""
    order = np.argsort(rows, kind="stable")
    rising = rows[order]
    runs = np.split(rising, np.flatnonzero(np.diff(rising) != 1) + 1)
    found = np.concatenate([read(int(run[0]), int(run[-1]) + 1) for run in runs])
    picked = np.empty_like(found)
    picked[order] = found
    return picked


def format_names(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f", and {len(names) - MOST_TOLD:,} more" if len(names) > MOST_TOLD else ""
    return f"{', '.join(names[:MOST_TOLD])}{more}"
