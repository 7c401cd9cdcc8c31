"""Hold out classes from training by their names.

A training set with `hold_out: 0.1` excludes the classes that ImagePairs with the same `hold_out` verifies on.
A class always belongs to the same part. The part depends neither on the class order, nor on the
ranks, nor on classes that are added later. Try it:

    held_out(["Ann", "Bob", "Cy"], 0.5)  # bool [3]
"""

import hashlib
import os
from collections.abc import Sequence

import numpy as np

from plsc.data.dataset import Dataset
from plsc.errors import UserError

# With fewer identities, the 95 % interval of an accuracy around 85 % is mostly wider than 15 points
# (simulated with 8 pictures per identity). The accuracies of two such draws differ by 5 to 10 points.
FEWEST = 10
LEAST = 2  # least classes in each part: a pair of different people and training each need two


def held_out(names: Sequence[str], share: float) -> np.ndarray:
    """Choose the classes that are held out: bool [N].

    A class is held out if the hash of its name, a number in [0, 1), is below `share`. The classes of a larger
    share include those of a smaller share.

    Args:
        names: the N class names.
        share: approximate share to hold out.
    """
    digests = (hashlib.blake2b(b"hold out " + os.fsencode(name), digest_size=8).digest() for name in names)
    return np.array([int.from_bytes(digest, "big") for digest in digests], np.float64) < share * 2.0**64


def class_keys(data: Dataset) -> list[str]:
    """Return the names by which classes are held out.

    They are the names of the classes' folders if these are known, otherwise the classes' numbers.
    """
    if data.identities is None:
        return [str(number) for number in range(data.num_classes)]
    return [os.path.basename(str(identity)) for identity in data.identities]


def choose_held_out(data: Dataset, share: float, where: str) -> np.ndarray:
    """Choose a set's classes that are held out, as `held_out` does: bool [num_classes].

    Raises UserError if one part has too few classes.

    Args:
        data: the data set.
        share: approximate share to hold out.
        where: the set's name for the message.
    """
    chosen = held_out(class_keys(data), share)
    count = int(chosen.sum())
    if not LEAST <= count <= data.num_classes - LEAST:
        raise UserError(
            f"{share:g} of {where} holds out {count} of its {data.num_classes:,} classes (their names "
            f"decide which); at least {LEAST} must be held out, and at least {LEAST} trained on; "
            "choose another share",
            key="hold_out",
        )
    return chosen
