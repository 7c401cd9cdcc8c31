#!/usr/bin/env bash
# paddlepaddle 3.3.1 (and 2.6.2), CPU.
#
# Guess: BatchNorm1D in training mode, for a batch with one sample, raises an error as PyTorch does, or returns
# the bias, since the sample is its own mean.
# Seen: it returns the sample itself. It neither normalises nor applies weight and bias, and passes the gradient
# through. For two equal samples it returns the bias. If the last batch of an epoch has one sample, as with
# 1,025 samples in batches of 128, the layers behind get numbers of another size for this step, and the loss may
# jump. There is no message. Give drop_last=True. BatchNorm2D does the same for a map of 1 x 1. (We found no
# report. In issue 19551, the answer to the question is that the result is the bias.)
#
#     2 samples: [7.0, 7.0, 7.0], running mean [0.5, 6.0, 70.0]
#     1 sample: [5.0, 60.0, 700.0], running mean [0.0, 0.0, 0.0]
#
# (Each sample is 5, 60 and 700, each weight 2, each bias 7.)
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet paddlepaddle==3.3.1 numpy==2.4.6 setuptools
cat >lone.py <<'PY'
import paddle

seen = []
for count in (2, 1):
    layer = paddle.nn.BatchNorm1D(3)
    layer.weight.set_value(paddle.full([3], 2.0))
    layer.bias.set_value(paddle.full([3], 7.0))
    layer.train()
    x = paddle.to_tensor([[5.0, 60.0, 700.0]] * count, stop_gradient=False)
    y = layer(x)
    y.sum().backward()
    mean = [round(number, 3) for number in layer._mean.tolist()]
    seen.append((y[0].tolist(), mean, x.grad[0].tolist()))
    print(f"{count} sample{'s' if count > 1 else ''}: {seen[-1][0]}, running mean {mean}")
assert seen[0] == ([7.0, 7.0, 7.0], [0.5, 6.0, 70.0], [0.0, 0.0, 0.0])
assert seen[1] == ([5.0, 60.0, 700.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0])
PY
venv/bin/python lone.py 2>/dev/null
