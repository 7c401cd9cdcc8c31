"""Check a verification set's pairs, and spread them over folds."""

from collections.abc import Callable

import numpy as np

from plsc.errors import UserError
from plsc.utils.text import plural

_SHOWN = 5  # pairs that a message names


def alternating(same: np.ndarray) -> np.ndarray:
    """Return an order of the pairs that spreads both kinds evenly, int64 [P].

    Each kind keeps its own order. Folds are cut from the pairs in their order, as LFW's are. If the pairs are
    sorted by kind, a fold contains only one kind, and its threshold comes from folds with too many pairs of
    the other kind.

    same: bool [P], whether a pair is positive.
    """
    place = np.empty(len(same))
    for kind in (True, False):
        count = int((same == kind).sum())
        place[same == kind] = (np.arange(count) + 0.5) / max(count, 1)
    return np.lexsort([~same, place])


def uninformative_pairs(pairs: np.ndarray, same: np.ndarray, name: Callable[[int], str]) -> list[str]:
    """Report pairs that compare an image with itself, and pairs that occur twice: a sentence for each kind.

    Args:
        pairs: int64 [P, 2], the same number for the same image.
        same: bool [P], whether a pair is positive.
        name: gives a pair's name for messages, such as "line 3".

    Raises UserError if the same pair is both positive and negative.
    """
    first, second = np.sort(pairs, axis=1).T
    keys = first * (int(pairs.max(initial=0)) + 1) + second
    order = np.argsort(keys, kind="stable")
    repeated = np.flatnonzero(keys[order][1:] == keys[order][:-1]) + 1
    before, after = order[repeated - 1], order[repeated]
    wrong = np.flatnonzero(same[before] != same[after])
    if len(wrong):
        named = (f"{name(before[at])} and {name(after[at])}" for at in wrong[:_SHOWN].tolist())
        raise UserError(
            f"{'; '.join(named)}: the same two images are labelled both as one identity and as two; "
            "correct the labels "
            f"({len(wrong):,} such pairs in all)"
        )
    found = {"compared with itself": np.flatnonzero(first == second)}
    found["given twice"] = np.sort(after)
    return [
        f"{plural(len(numbers), 'pair')} {what}, which proves nothing: "
        + ", ".join(map(name, numbers[:_SHOWN].tolist()))
        for what, numbers in found.items()
        if len(numbers)
    ]
