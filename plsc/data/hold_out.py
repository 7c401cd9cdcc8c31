"""Hold classes out of training by their names: `hold_out: 0.1` of a training set, and of the ImagePairs that
verify on the classes held out.

A class always stays in the same part, whatever the order of the classes, the ranks, and the classes that come
later:

    held_out(["Ann", "Bob", "Cy"], 0.5)  # bool [3]
"""

import hashlib
import os
from collections.abc import Sequence

import numpy as np

from plsc.data.dataset import Dataset
from plsc.errors import UserError

# Of fewer identities the 95 % interval of an accuracy around 85 % is mostly wider than 15 points (8 pictures
# each, simulated), and the accuracies of two such draws differ by 5 to 10 points.
FEWEST = 10
LEAST = 2  # classes on either side: a pair of different people takes two, and so does training


def held_out(names: Sequence[str], share: float) -> np.ndarray:
    """Find the classes of these names that are held out, about `share` of them: bool [N].

    The hash of a name decides, a number in [0, 1): a larger share has them too.
    """
    digests = (hashlib.blake2b(b"hold out " + os.fsencode(name), digest_size=8).digest() for name in names)
    return np.array([int.from_bytes(digest, "big") for digest in digests], np.float64) < share * 2.0**64


def class_keys(data: Dataset) -> list[str]:
    """Return the names by which classes are held out: their folders' names where those are known, else their
    numbers."""
    if data.identities is None:
        return [str(number) for number in range(data.num_classes)]
    return [os.path.basename(str(identity)) for identity in data.identities]


def choose_held_out(data: Dataset, share: float, where: str) -> np.ndarray:
    """Choose classes of a set as `held_out` does, bool [num_classes]; UserError, which calls the set `where`,
    if too few are on one side."""
    chosen = held_out(class_keys(data), share)
    count = int(chosen.sum())
    if not LEAST <= count <= data.num_classes - LEAST:
        raise UserError(
            f"{share:g} of {where} holds out {count} of its {data.num_classes:,} classes, as their names "
            f"decide: {LEAST} at least have to be held out and {LEAST} trained on; take another share",
            key="hold_out",
        )
    return chosen
