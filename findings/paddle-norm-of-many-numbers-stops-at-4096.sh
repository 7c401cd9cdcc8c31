#!/usr/bin/env bash
# paddlepaddle 3.3.1 and 2.6.2, CPU.
#
# Guess: paddle.linalg.norm(x) of a float32 tensor is sqrt(sum of squares), to about 7 digits.
# Seen: 3.3.1 adds the squares one after the other in float32. A sum of ones stops at 2**24, because 2**24 + 1
# is 2**24 again. The norm of 100,000 x 512 ones is therefore 4096, not 7155.4, without a warning. 2.6.2 is
# right, and so is (x * x).sum().sqrt() in both.
#
#     3.3.1: norm 4096.0, root of the sum 7155.4, right 7155.4
#     2.6.2: norm 7155.4, root of the sum 7155.4, right 7155.4
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat >norm.py <<'PY'
import sys

import paddle

x = paddle.ones([100_000, 512])
norm, root, right = paddle.linalg.norm(x).item(), (x * x).sum().sqrt().item(), (100_000 * 512) ** 0.5
print(f"{paddle.__version__}: norm {norm:.1f}, root of the sum {root:.1f}, right {right:.1f}")
assert abs(root - right) < 0.1
assert abs(norm - float(sys.argv[1])) < 0.1
PY
for version in "3.3.1 4096 numpy==2.4.6" "2.6.2 7155.4 numpy==1.26.4"; do
    read -r paddle norm numpy <<<"$version"
    python3 -m venv "venv-$paddle"
    "venv-$paddle/bin/pip" install --quiet "paddlepaddle==$paddle" "$numpy" "protobuf<6" setuptools
    "venv-$paddle/bin/python" norm.py "$norm" 2>/dev/null
done
