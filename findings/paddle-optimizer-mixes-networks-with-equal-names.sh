#!/usr/bin/env bash
# paddlepaddle 3.3.1 (and 2.6.2), CPU.
#
# Guess: an optimizer keeps one velocity for each parameter that it was given.
# Seen: it keeps one for each parameter NAME. Two networks that were built under unique_name.guard(), which is
# the usual way to get stable names for checkpoints, have equal names. In one optimizer they share a velocity,
# so the gradients of the one move the other. There is no message.
#
#     equal names: -258.2 -532.4
#     own names:   -5.6 -561.0
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet paddlepaddle==3.3.1 numpy==2.4.6 setuptools
cat >names.py <<'PY'
import contextlib

import paddle
from paddle.utils import unique_name


def train(scope):
    """Return both weights after three steps; their gradients are 1 and 100 in each."""
    weights = []
    for _ in range(2):
        with scope():
            net = paddle.nn.Linear(1, 1, bias_attr=False)
        net.weight.set_value(paddle.zeros([1, 1]))
        weights.append(net.weight)
    optimizer = paddle.optimizer.Momentum(1.0, parameters=weights)
    for _ in range(3):
        (weights[0].sum() + 100 * weights[1].sum()).backward()
        optimizer.step()
        optimizer.clear_grad()
    return [round(weight.item(), 1) for weight in weights]


equal, own = train(unique_name.guard), train(contextlib.nullcontext)
print("equal names:", *equal)
print("own names:  ", *own)
assert own == [-5.6, -561.0]
assert abs(equal[0] - own[0]) > 100, "the optimizer keeps the networks apart"
PY
venv/bin/python names.py 2>/dev/null
