#!/usr/bin/env bash
# paddle2onnx 2.1.0 with paddlepaddle 3.3.1, CPU.
#
# Guess: the ONNX graph has the numbers that the layers have, or the export fails.
# Seen: LeakyReLU's slope comes out as another number each time: 0.2 became -8.1e-20 in one export and -1.7e22
# in the next. Pad2D pads with 0 instead of its value, and GroupNorm's epsilon becomes 0. ELU keeps its alpha.
# There is no message. A small slope looks right in a quick test with positive inputs. Compare an exported
# network's outputs with Paddle's, or write the slope as a PReLU, which keeps it.
#
#     LeakyReLU 0.2: wrong
#     Pad2D 0.7: wrong
#     GroupNorm 0.5: wrong
#     ELU 0.3: right
#     PReLU 0.2: right
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet paddlepaddle==3.3.1 numpy==2.4.6 setuptools packaging \
    paddle2onnx==2.1.0 onnx==1.17.0 onnxruntime==1.32.0
cat >layers.py <<'PY'
import numpy as np
import onnxruntime
import paddle
from paddle import nn
from paddle.static import InputSpec

x = np.random.default_rng(0).standard_normal((1, 4, 8, 8)).astype(np.float32)
layers = {
    "LeakyReLU 0.2": nn.LeakyReLU(0.2),
    "Pad2D 0.7": nn.Pad2D(1, value=0.7),
    "GroupNorm 0.5": nn.GroupNorm(2, 4, epsilon=0.5),
    "ELU 0.3": nn.ELU(0.3),
    "PReLU 0.2": nn.PReLU(4, init=0.2),
}
seen = {}
for name, layer in layers.items():
    layer.eval()
    spec = InputSpec([None, *x.shape[1:]], "float32")
    paddle.onnx.export(layer, "layer", input_spec=[spec], opset_version=17)
    session = onnxruntime.InferenceSession("layer.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: x})
    expected = layer(paddle.to_tensor(x)).numpy()
    seen[name] = "right" if np.allclose(found, expected, atol=1e-4) else "wrong"
    print(f"seen {name}: {seen[name]}", flush=True)
assert list(seen.values()) == ["wrong"] * 3 + ["right"] * 2
PY
venv/bin/python layers.py 2>/dev/null | sed -n 's/^seen //p'
