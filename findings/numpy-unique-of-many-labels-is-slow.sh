#!/usr/bin/env bash
# numpy 2.4.6 and 1.26.4, CPU.
#
# Guess: np.unique sorts, so it takes about as long as np.sort, also for the labels of a large face data set
# (WebFace42M has 42 million).
# Seen: since NumPy 2.3, np.unique of integers fills a hash table and sorts what is in it. For 10 million
# labels of two million people in random order, it takes many times as long as sorting them and comparing
# neighbours. NumPy 1.26 does not. The results are equal. A call with return_index, return_inverse or
# return_counts sorts in both versions.
#
#     1.26.4: at most 4 times as long as a sort
#     2.4.6: at least 8 times as long as a sort
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat >labels.py <<'PY'
import time

import numpy as np

labels = np.random.default_rng(0).integers(0, 2_000_000, 10_000_000)


def seconds(function):
    times = []
    for _ in range(3):
        start = time.perf_counter()
        found = function()
        times.append(time.perf_counter() - start)
    return min(times), found


def by_sorting():
    ordered = np.sort(labels)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])]


sorting, expected = seconds(by_sorting)
unique, found = seconds(lambda: np.unique(labels))
assert np.array_equal(found, expected)
ratio = unique / sorting
if np.__version__ == "1.26.4":
    assert ratio <= 4, ratio
    print("1.26.4: at most 4 times as long as a sort")
else:
    assert ratio >= 8, ratio
    print("2.4.6: at least 8 times as long as a sort")
PY
for version in 1.26.4 2.4.6; do
    python3 -m venv "$version"
    "$version/bin/pip" install --quiet "numpy==$version"
    "$version/bin/python" labels.py
done
