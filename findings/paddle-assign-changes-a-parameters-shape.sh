#!/usr/bin/env bash
# paddlepaddle 3.3.1 (and 2.6.2), CPU.
#
# Guess: paddle.assign(source, parameter) raises if the shapes differ, like set_value.
# Seen: the parameter silently takes the source's shape. A network whose weights are loaded by assign from
# another network fails, if at all, in a later forward pass.
#
#     assign: [2, 3] became [5]
#     set_value: AssertionError
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet paddlepaddle==3.3.1 numpy==2.4.6 setuptools
cat >assign.py <<'PY'
import paddle

weight = paddle.create_parameter([2, 3], "float32")
paddle.assign(paddle.ones([5]), weight)
print(f"assign: [2, 3] became {list(weight.shape)}")
assert list(weight.shape) == [5]
try:
    paddle.create_parameter([2, 3], "float32").set_value(paddle.ones([5]))
except AssertionError as error:
    print("set_value:", type(error).__name__)
else:
    raise SystemExit("set_value takes another shape")
PY
venv/bin/python assign.py 2>/dev/null
