#!/usr/bin/env bash
# paddlepaddle 3.3.1, CPU (2.6.2 is right).
#
# Guess: F.cross_entropy ignores samples with the label -100, its ignore_index, and returns the mean over the
# others.
# Seen: it sets the losses of these samples to 0, but divides by the number of all samples. If half of the
# samples are ignored, loss and gradients are halved, and they change with the share in each batch. There is no
# message. Every negative ignore_index does so. The documentation tells that a negative one ignores nothing, but
# -100 is what it is if none is given. With a positive one, such as 255, with class weights, or in F.nll_loss
# the mean is right, and in 2.6.2 it is right for all. Give reduction="sum", and divide by the number of the
# other samples. (Paddle's issues 47418 and 48663 report it for 2.3.2, pull request 76033 for 3.x.)
#
#     ignore_index -100: 0.2038, the other sample alone 0.4076
#     ignore_index -1: 0.2038, the other sample alone 0.4076
#     ignore_index 255: 0.4076, the other sample alone 0.4076
#     ignore_index -100, weights of 1: 0.4076, the other sample alone 0.4076
#     nll_loss, ignore_index -100: 0.4076, the other sample alone 0.4076
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet paddlepaddle==3.3.1 numpy==2.4.6 setuptools
cat >ignored.py <<'PY'
import math

import paddle
import paddle.nn.functional as F

logits = paddle.to_tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
alone = math.log(sum(math.exp(logit) for logit in (1, 2, 3))) - 3  # the loss of the first sample, label 2
assert abs(F.cross_entropy(logits[:1], paddle.to_tensor([2])).item() - alone) < 1e-5


def labels(ignored):
    return paddle.to_tensor([2, ignored])


def entropy(ignored, **options):
    return F.cross_entropy(logits, labels(ignored), ignore_index=ignored, **options)


for name, loss, share in (
    ("ignore_index -100", entropy(-100), 0.5),
    ("ignore_index -1", entropy(-1), 0.5),
    ("ignore_index 255", entropy(255), 1),
    ("ignore_index -100, weights of 1", entropy(-100, weight=paddle.ones([3])), 1),
    ("nll_loss, ignore_index -100", F.nll_loss(F.log_softmax(logits), labels(-100), ignore_index=-100), 1),
):
    print(f"{name}: {loss.item():.4f}, the other sample alone {alone:.4f}")
    assert abs(loss.item() - share * alone) < 1e-5
PY
venv/bin/python ignored.py 2>/dev/null
