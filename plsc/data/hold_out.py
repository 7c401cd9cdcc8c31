"""Hold classes out of training by their names: `hold_out: 0.1` of a training set, and of the ImagePairs that
verify on the classes held out.

A class always stays in the same part, whatever the order of the classes, the ranks, and the classes that come
later:

    held_out(["Ann", "Bob", "Cy"], 0.5)  # bool [3]
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Sequence

import numpy as np

from plsc.errors import UserError

# Of fewer identities the 95 % interval of an accuracy around 85 % is mostly wider than 15 points (8 pictures
# each, simulated), and the accuracies of two such draws differ by 5 to 10 points.
FEWEST = 10
_MOST = 0.5  # of the classes: a larger share to hold out is not advised
LEAST = 2  # classes on either side: a pair of different people takes two, and so does training


def check_hold_out(share: float) -> None:
    """Raise UserError unless `share` is in [0, 1)."""
    if not 0 <= share < 1:
        raise UserError(f"must be in [0, 1), got {share:g}", key="hold_out")


def held_out(names: Sequence[str], share: float) -> np.ndarray:
    """Find the classes of these names that are held out, about `share` of them: bool [N]. A larger share has
    them too."""
    return _places(names) < share


def _places(names: Sequence[str]) -> np.ndarray:
    """Compute a number in [0, 1) for each name by its hash; the Unicode forms of a name have the same."""
    texts = (os.fsencode(unicodedata.normalize("NFC", name)) for name in names)
    digests = (hashlib.blake2b(b"hold out " + text, digest_size=8).digest() for text in texts)
    return np.array([int.from_bytes(digest, "big") for digest in digests], np.float64) / 2.0**64


def class_keys(identities: np.ndarray | None, num_classes: int) -> list[str]:
    """Return the names by which classes are held out: their folders' names where those are known, else their
    numbers."""
    if identities is None:
        return [str(number) for number in range(num_classes)]
    return [os.path.basename(str(identity)) for identity in identities]


def enough_held_out(names: Sequence[str]) -> float | None:
    """Find the least share, in tenths and at most a half, that holds out FEWEST of the classes of these
    names; None if none does."""
    tenths = (tenth / 10 for tenth in range(1, round(10 * _MOST) + 1))
    return next((share for share in tenths if held_out(names, share).sum() >= FEWEST), None)


def choose_held_out(names: Sequence[str], share: float, where: str) -> np.ndarray:
    """Choose as `held_out` does; UserError, which calls the set `where`, if too few are on one side."""
    chosen = held_out(names, share)
    count = int(chosen.sum())
    if not LEAST <= count <= len(names) - LEAST:
        raise UserError(
            f"{share:g} of {where} holds out {count} of its {len(names):,} classes, as their names decide: "
            f"{LEAST} at least have to be held out and {LEAST} trained on; take another share",
            key="hold_out",
        )
    return chosen
