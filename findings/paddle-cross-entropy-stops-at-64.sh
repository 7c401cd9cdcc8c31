#!/usr/bin/env bash
# paddlepaddle 3.3.1 (and 2.6.2), CPU.
#
# Guess: the cross entropy for the logits [d, 0] and the label 1 is d for every large d, and log_softmax
# returns -d.
# Seen: both stop at 64, in float32 and float64, without a message. F.cross_entropy, F.log_softmax and
# F.nll_loss of it agree with each other, so a comparison does not show it. paddle.logsumexp is exact.
# Cosines times a scale of 64, as in ArcFace, differ by up to 128. The samples with the largest losses, such as
# wrong labels, therefore all have the loss 64 and cannot be ranked. Compute logsumexp(logits) minus the
# label's logit instead.
#
#     d 60: cross_entropy 60, log_softmax -60, by logsumexp 60
#     d 80: cross_entropy 64, log_softmax -64, by logsumexp 80
#     d 128: cross_entropy 64, log_softmax -64, by logsumexp 128
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet paddlepaddle==3.3.1 numpy==2.4.6 setuptools
cat >limit.py <<'PY'
import paddle
import paddle.nn.functional as F

label = paddle.to_tensor([1])
for dtype in ("float64", "float32"):
    for d in (60, 80, 128):
        logits = paddle.to_tensor([[d, 0]], dtype=dtype)
        entropy = F.cross_entropy(logits, label).item()
        log = F.log_softmax(logits)[0, 1].item()
        exact = (paddle.logsumexp(logits, 1) - logits[:, 1]).item()
        if dtype == "float32":
            print(f"d {d}: cross_entropy {entropy:.0f}, log_softmax {log:.0f}, by logsumexp {exact:.0f}")
        assert (round(entropy), round(log), round(exact)) == (min(d, 64), -min(d, 64), d)
PY
venv/bin/python limit.py 2>/dev/null
