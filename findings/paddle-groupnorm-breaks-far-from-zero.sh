#!/usr/bin/env bash
# paddlepaddle 3.3.1 (and 2.6.2), CPU.
#
# Guess: GroupNorm gives outputs of mean 0 and standard deviation 1 for any input with deviation 1, like
# BatchNorm and InstanceNorm do.
# Seen: its variance is the difference of two large float32 numbers. For inputs around 3,000 the outputs'
# deviation is 158, and around 10,000 it is 251. BatchNorm2D and InstanceNorm2D give 1.
#
#     mean 0: group 1.0 batch 1.0 instance 1.0
#     mean 3000: group 158.4 batch 1.0 instance 1.0
#     mean 10000: group 250.9 batch 1.0 instance 1.0
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet paddlepaddle==3.3.1 numpy==2.4.6 setuptools
cat >norms.py <<'PY'
import paddle
from paddle import nn

for mean in (0, 3000, 10000):
    paddle.seed(0)
    x = paddle.randn([4, 8, 16, 16]) + mean
    stds = [norm(x).std().item() for norm in (nn.GroupNorm(2, 8), nn.BatchNorm2D(8), nn.InstanceNorm2D(8))]
    group, batch, instance = stds
    print(f"mean {mean}: group {group:.1f} batch {batch:.1f} instance {instance:.1f}")
    assert abs(batch - 1) < 0.01 and abs(instance - 1) < 0.01
    assert group > 10 if mean else abs(group - 1) < 0.01
PY
venv/bin/python norms.py 2>/dev/null
