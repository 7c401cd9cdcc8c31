#!/usr/bin/env bash
# safetensors 0.8.0 and 0.7.0, numpy 2.4.6.
#
# Guess: safetensors.numpy.save_file writes the array that it gets, whatever its memory order is, or raises as
# safetensors.torch does for such tensors.
# Seen: 0.7.0 does. 0.8.0 writes the memory behind the array under the array's shape. A transposed matrix, such
# as a head's weights that another framework keeps as [width, classes], comes back with its numbers in other
# places. A column slice takes numbers from other columns. File, shape and dtype are valid, so nothing warns.
# Give np.ascontiguousarray(array). (safetensors issue 825 reports it.)
#
#     0.7.0: transposed kept, sliced kept, contiguous kept
#     0.8.0: transposed changed, sliced changed, contiguous kept
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat >roundtrip.py <<'PY'
import sys

import numpy as np
import safetensors
from safetensors.numpy import load_file, save_file

matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
arrays = {
    "transposed": matrix.T,
    "sliced": matrix[:, :2],
    "contiguous": np.ascontiguousarray(matrix.T),
}
save_file(arrays, "arrays.safetensors")
loaded = load_file("arrays.safetensors")
seen = {name: "kept" if np.array_equal(loaded[name], array) else "changed" for name, array in arrays.items()}
print(safetensors.__version__ + ":", ", ".join(f"{name} {what}" for name, what in seen.items()))
assert list(seen.values()) == [sys.argv[1], sys.argv[1], "kept"]
PY
for version in "0.7.0 kept" "0.8.0 changed"; do
    read -r safetensors what <<<"$version"
    python3 -m venv "venv-$safetensors"
    "venv-$safetensors/bin/pip" install --quiet "safetensors==$safetensors" numpy==2.4.6
    "venv-$safetensors/bin/python" roundtrip.py "$what"
done
