#!/usr/bin/env bash
# paddlepaddle 3.3.1 (and 2.6.2), CPU.
#
# Guess: LookAhead's slow weights start at the initial weights. After k steps of the inner optimizer they move
# the share alpha of the way to the fast weights, as in the paper (Zhang et al. 2019) and in Paddle's
# documentation.
# Seen: they start at the weights after the first step. The way of the first step is therefore taken in full,
# not by the share alpha. With SGD all later weights differ by (1 - alpha) of the first step. If the first step
# is large, as with Adam, whose first step moves every weight by the whole learning rate, or in a fine-tuning of
# a good network, it is kept. There is no message. Take the first step with a learning rate of 0. (Paddle's pull
# request 26516 mended the same in the optimizer for static graphs.)
#
#     by the paper: 0.9 0.8 0.85 0.75 0.65 0.7
#     LookAhead:    0.9 0.8 0.8 0.7 0.6 0.65
#     rate 0 first: 1.0 0.9 0.9 0.8 0.7 0.75
#
# (One weight of 1, gradient 1, SGD with the rate 0.1, alpha 0.5, k 3.)
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet paddlepaddle==3.3.1 numpy==2.4.6 setuptools
cat >slow.py <<'PY'
import paddle
from paddle.incubate.optimizer import LookAhead

alpha, k, steps = 0.5, 3, 6


def paper(rates):
    slow = fast = 1.0
    for step, rate in enumerate(rates, 1):
        fast -= rate
        if step % k == 0:
            slow += alpha * (fast - slow)
            fast = slow
        yield round(fast, 4)


def look_ahead(rates):
    layer = paddle.nn.Linear(1, 1, bias_attr=False)
    layer.weight.set_value(paddle.ones([1, 1]))
    inner = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
    optimizer = LookAhead(inner, alpha=alpha, k=k)
    for rate in rates:
        inner.set_lr(rate)
        layer.weight.sum().backward()
        optimizer.step()
        optimizer.clear_grad()
        yield round(layer.weight.item(), 4)


rates = [0.1] * steps
right, found = list(paper(rates)), list(look_ahead(rates))
mended = list(look_ahead([0.0, *rates[1:]]))
for name, weights in (("by the paper:", right), ("LookAhead:   ", found), ("rate 0 first:", mended)):
    print(name, *weights)
assert found == [0.9, 0.8, 0.8, 0.7, 0.6, 0.65] != right
assert mended == list(paper([0.0, *rates[1:]]))
PY
venv/bin/python slow.py 2>/dev/null
