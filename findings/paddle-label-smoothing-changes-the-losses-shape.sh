#!/usr/bin/env bash
# paddlepaddle 3.3.1 (and 2.6.2), CPU.
#
# Guess: F.cross_entropy(reduction="none") returns one loss a sample in the same shape with and without label
# smoothing.
# Seen: N labels give [N] without label smoothing, and [N, 1] with it. The product with N weights is then an
# N x N matrix, in which each loss meets each weight. Its mean is a scalar without an error. In a training that
# drops samples by a weight 0, the dropped samples still get gradients. Call squeeze(1) on the losses.
#
#     smoothing 0.0: losses [4], weighted [4], gradient in the dropped sample: False
#     smoothing 0.1: losses [4, 1], weighted [4, 4], gradient in the dropped sample: True
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet paddlepaddle==3.3.1 numpy==2.4.6 setuptools
cat >smooth.py <<'PY'
import paddle
import paddle.nn.functional as F

labels = paddle.to_tensor([0, 1, 2, 0])
weights = paddle.to_tensor([0.0, 1.0, 1.0, 1.0])  # drops the first sample
seen = []
for smoothing in (0.0, 0.1):
    logits = paddle.zeros([4, 3])
    logits.stop_gradient = False
    losses = F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="none")
    weighted = losses * weights
    weighted.mean().backward()
    dropped = bool((logits.grad[0].abs().max() > 0.01).item())
    shapes = list(losses.shape), list(weighted.shape)
    print(f"smoothing {smoothing}: losses {shapes[0]}, weighted {shapes[1]},", end=" ")
    print(f"gradient in the dropped sample: {dropped}")
    seen.append((*shapes, dropped))
assert seen == [([4], [4], False), ([4, 1], [4, 4], True)]
PY
venv/bin/python smooth.py 2>/dev/null
