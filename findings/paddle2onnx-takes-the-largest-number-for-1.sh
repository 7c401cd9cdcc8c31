#!/usr/bin/env bash
# paddle2onnx 2.1.0 with paddlepaddle 3.3.1, onnxruntime 1.32.0, CPU.
#
# Guess: paddle.linalg.norm and F.normalize export with every order p that Paddle computes, or the export fails.
# Seen: an infinite p, which stands for the largest number, is computed as a sum of powers, so the result is 1
# for numbers around 1. F.normalize with this p then divides by 1 and leaves each row as it is. With p = 0,
# which counts the numbers other than 0, the result is infinite. The orders 0.5, 1, 2 and 3 are right. There is
# no message. Write x.abs().max(axis) instead. (We found no report.)
#
#     norm inf: Paddle 1.304 ONNX 1.000
#     norm 0: Paddle 8.000 ONNX inf
#     norm 0.5: Paddle 27.990 ONNX 27.990
#     norm 3: Paddle 1.523 ONNX 1.523
#     normalize inf: Paddle 0.096 ONNX 0.126
#
# (Each number is the first of the result.)
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet paddlepaddle==3.3.1 numpy==2.4.6 setuptools packaging \
    paddle2onnx==2.1.0 onnx==1.17.0 onnxruntime==1.32.0 onnx_graphsurgeon==0.6.1 polygraphy==0.53.6
cat >norms.py <<'PY'
import numpy as np
import onnxruntime
import paddle
import paddle.nn.functional as F
from paddle.static import InputSpec

inf = float("inf")
x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)


class Norm(paddle.nn.Layer):
    def __init__(self, kind, p):
        super().__init__()
        self.kind, self.p = kind, p

    def forward(self, x):
        return paddle.linalg.norm(x, self.p, 1) if self.kind == "norm" else F.normalize(x, self.p, 1)


for kind, p, right in (
    ("norm", inf, False),
    ("norm", 0, False),
    ("norm", 0.5, True),
    ("norm", 3, True),
    ("normalize", inf, False),
):
    layer = Norm(kind, p)
    layer.eval()
    paddle.onnx.export(layer, "layer", input_spec=[InputSpec([None, 8], "float32")], opset_version=17)
    session = onnxruntime.InferenceSession("layer.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: x})
    ours = layer(paddle.to_tensor(x)).numpy()
    norms = np.linalg.norm(x, p, axis=1)
    assert np.allclose(ours, norms if kind == "norm" else x / norms[:, None], atol=1e-5)
    print(f"{kind} {p}: Paddle {ours.flat[0]:.3f} ONNX {found.flat[0]:.3f}")
    assert np.allclose(found, ours, atol=1e-5) == right
    if kind == "norm" and p == inf:
        assert (found == 1).all()
PY
venv/bin/python norms.py 2>/dev/null | grep ": Paddle"
