#!/usr/bin/env bash
# paddlepaddle 3.3.1 and 2.6.2, CPU.
#
# Guess: x.astype("float16") and x.astype("bfloat16") round to the nearest number, with ties to even, as NumPy
# and processors do.
# Seen: 3.3.1 does. 2.6.2 drops the lower bits instead, so every number moves towards zero. Half of all numbers
# differ by one step of the 16-bit type. Weights that are cast in each step therefore shrink: the mean of
# numbers between 1 and 2 falls by half a step, 0.0005 in float16.
#
#     3.3.1: float16 nearest 1.000, truncated 0.498, bfloat16 nearest 1.000, truncated 0.502
#     2.6.2: float16 nearest 0.498, truncated 1.000, bfloat16 nearest 0.502, truncated 1.000
#
# (Each number is the share of 100,000 float32 numbers that come out so.)
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat >cast.py <<'PY'
import sys

import numpy as np
import paddle

x = np.random.default_rng(0).uniform(1, 2, 100_000).astype(np.float32)
bits = x.view(np.uint32)
shares = {}
for dtype, dropped in (("float16", 13), ("bfloat16", 16)):
    got = paddle.to_tensor(x).astype(dtype).astype("float32").numpy()
    truncated = (bits >> dropped << dropped).view(np.float32)
    tie_to_even = (bits >> dropped & 1) + np.uint32((1 << dropped - 1) - 1)
    nearest = (bits + tie_to_even >> dropped << dropped).view(np.float32)
    shares[dtype] = (got == nearest).mean(), (got == truncated).mean()
print(paddle.__version__ + ":", ", ".join(f"{d} nearest {n:.3f}, truncated {t:.3f}" for d, (n, t) in shares.items()))
for nearest, truncated in shares.values():
    assert (truncated if sys.argv[1] == "truncates" else nearest) == 1.0
    assert 0.4 < (nearest if sys.argv[1] == "truncates" else truncated) < 0.6
PY
for version in "3.3.1 rounds numpy==2.4.6" "2.6.2 truncates numpy==1.26.4"; do
    read -r paddle how numpy <<<"$version"
    python3 -m venv "venv-$paddle"
    "venv-$paddle/bin/pip" install --quiet "paddlepaddle==$paddle" "$numpy" "protobuf<6" setuptools
    "venv-$paddle/bin/python" cast.py "$how" 2>/dev/null
done
