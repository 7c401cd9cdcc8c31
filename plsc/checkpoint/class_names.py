"""Match the classes of two runs by name, and read head rows in any order. No Paddle, no ranks.

The number of a class is its place in a list and changes when identities are added or removed; its name does
not. Try it:

    match_names(["Ann", "Bob"], ["Bob", "Cy"])   # rows [1, -1]: Bob has row 1, Cy has none; Ann is dropped
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from plsc.errors import UserError

MOST_SHOWN = 10


def match_names(there: Sequence[str], here: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Find the names of `here` in `there`.

    Returns the place in `there` of each name of `here`, -1 if it is missing: int64 [len(here)]; and the names
    of `there` that are not in `here`, in their order. The names of each list must differ.
    """
    place = {name: number for number, name in enumerate(there)}
    rows = np.fromiter((place.pop(name, -1) for name in here), np.int64, len(here))
    return rows, list(place)


def refuse_duplicates(names: Sequence[str], where: str) -> None:
    """Raise UserError, which begins with `where`, if two classes have the same name."""
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise UserError(f"{where}: {count} classes are called '{name}'; each class needs a name of its own")


def pick_rows(read: Callable[[int, int], np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Read the rows with the numbers `rows` (int64 [n], in any order, n > 0): [n, ...].

    Args:
        read: (start, stop) -> the rows [start, stop); it is called for no other rows.
    """
    order = np.argsort(rows, kind="stable")
    rising = rows[order]
    runs = np.split(rising, np.flatnonzero(np.diff(rising) != 1) + 1)
    sorted_rows = np.concatenate([read(int(run[0]), int(run[-1]) + 1) for run in runs])
    picked = np.empty_like(sorted_rows)
    picked[order] = sorted_rows
    return picked


def format_names(names: Sequence[str]) -> str:
    """Format the first names, and the number of the others."""
    more = f", and {len(names) - MOST_SHOWN:,} more" if len(names) > MOST_SHOWN else ""
    return f"{', '.join(names[:MOST_SHOWN])}{more}"
