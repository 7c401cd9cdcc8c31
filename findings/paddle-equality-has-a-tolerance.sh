#!/usr/bin/env bash
# paddlepaddle 3.3.1 and 2.6.2, CPU.
#
# Guess: x == 0 is true for zeros alone, x != 0 is true for all others, and count_nonzero(x) counts the
# latter.
# Seen: equality of float32 tensors has a tolerance. In 3.3.1 every number up to 1e-16 equals 0, in 2.6.2
# every number up to 1e-8. x != 0 follows, while <=, < and count_nonzero are exact. A guard against a division
# by zero that is written as x + (x == 0) therefore changes small numbers.
#
#     3.3.1: 1e-16 == 0, != 0: 9, count_nonzero: 39
#     2.6.2: 1e-08 == 0, != 0: 1, count_nonzero: 39
#
# (The 39 numbers are 1e-7 to 1e-45, the first number is the largest that equals 0.)
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat >equal.py <<'PY'
import sys

import numpy as np
import paddle

powers = range(7, 46)
x = paddle.to_tensor(np.array([10.0**-power for power in powers], np.float32))
equal = (x == 0).numpy()
first = int(equal.argmax())
exact, by_operator = int(paddle.count_nonzero(x)), int((x != 0).astype("int64").sum())
print(f"{paddle.__version__}: 1e-{powers[first]:02} == 0, != 0: {by_operator}, count_nonzero: {exact}")
assert powers[first] == int(sys.argv[1]) and exact == 39 and by_operator == first
assert (x <= 0).numpy().sum() == 0, "<= has a tolerance, too"
PY
for version in "3.3.1 16 numpy==2.4.6" "2.6.2 8 numpy==1.26.4"; do
    read -r paddle power numpy <<<"$version"
    python3 -m venv "venv-$paddle"
    "venv-$paddle/bin/pip" install --quiet "paddlepaddle==$paddle" "$numpy" "protobuf<6" setuptools
    "venv-$paddle/bin/python" equal.py "$power" 2>/dev/null
done
