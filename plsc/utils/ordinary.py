"""Tell ordinary values of a set from others, where some of the set's are faulty."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FEWEST = 20  # values that show what is ordinary
DEVIATIONS = 5.0  # beyond the median from which on a value is no ordinary one


def largest_ordinary(values: Sequence[float]) -> float:
    """Return the median of values plus DEVIATIONS times their deviation, which is taken from the lower half:
    the faults lie in the other."""
    low, middle = np.quantile(values, [0.1587, 0.5])
    return float(middle + DEVIATIONS * max(middle - low, 1e-3))
