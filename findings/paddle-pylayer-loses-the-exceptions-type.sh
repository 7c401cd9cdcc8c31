#!/usr/bin/env bash
# paddlepaddle 3.3.1 (and 2.6.2), CPU.
#
# Guess: an exception that is raised in the backward method of a paddle.autograd.PyLayer reaches the caller of
# backward() as it is. One that is raised in the forward method does.
# Seen: it arrives as OSError. Type and attributes are lost, and the message stands inside a traceback of C++
# lines, so `except ValueError` around loss.backward() catches nothing.
#
#     forward: ValueError
#     backward: OSError, with the message inside
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet paddlepaddle==3.3.1 numpy==2.4.6 setuptools
cat >layer.py <<'PY'
import paddle
from paddle.autograd import PyLayer


class Raises(PyLayer):
    @staticmethod
    def forward(ctx, x, where):
        if where == "forward":
            raise ValueError("the rule")
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        raise ValueError("the rule")


def caught(where):
    x = paddle.ones([1])
    x.stop_gradient = False
    try:
        Raises.apply(x, where).backward()
    except Exception as error:
        return error


forward, backward = caught("forward"), caught("backward")
print("forward:", type(forward).__name__)
print(f"backward: {type(backward).__name__}, with the message inside")
assert type(forward) is ValueError
assert type(backward) is OSError and "ValueError: the rule" in str(backward)
PY
venv/bin/python layer.py 2>/dev/null
