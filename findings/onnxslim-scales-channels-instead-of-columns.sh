#!/usr/bin/env bash
# onnxslim 0.1.98, onnx 1.19.1, onnxruntime 1.32.0, CPU.
#
# Guess: onnxslim.slim makes a graph smaller, and its numbers stay the same up to rounding.
# Seen: a Conv followed by a Mul with a constant becomes one Conv if the constant has as many numbers as the
# Conv has channels. The shape of the constant is not considered. [4] stands for four columns and [4, 1] for
# four rows, by the rules of broadcasting, but onnxslim multiplies the four channels. A map of 4 x 4 with 4
# channels that is weighted by position comes out wrong, without a message and in the right shape. Transposed
# convolutions do the same. [4, 1, 1], one number a channel, is right, and so is an Add. Give
# skip_fusion_patterns=["FusionConvMul"]. (We found no report. OnnxSlim's pull request 209 added the fusion.)
#
#     factors [4] of the columns: wrong, without the fusion right
#     factors [4, 1] of the rows: wrong, without the fusion right
#     factors [4, 1, 1] of the channels: right, without the fusion right
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet onnxslim==0.1.98 onnx==1.19.1 onnxruntime==1.32.0 numpy==2.4.6
cat >slim.py <<'PY'
import numpy as np
import onnxruntime
import onnxslim
from onnx import TensorProto, helper, numpy_helper

rng = np.random.default_rng(0)
x = rng.standard_normal((1, 2, 4, 4)).astype(np.float32)
weight = rng.standard_normal((4, 2, 1, 1)).astype(np.float32)


def word(model, right):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (found,) = session.run(None, {"x": x})
    assert found.shape == right.shape
    difference = np.abs(found - right).max()
    assert difference < 1e-5 or difference > 0.5
    return "right" if difference < 1e-5 else "wrong"


for shape, of, expected in (
    ([4], "columns", "wrong"),
    ([4, 1], "rows", "wrong"),
    ([4, 1, 1], "channels", "right"),
):
    factors = np.array([1, 2, 3, 4], np.float32).reshape(shape)
    right = np.einsum("bihw,oi->bohw", x, weight[:, :, 0, 0]) * factors
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "weight"], ["a"]), helper.make_node("Mul", ["a", "factors"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 4, 4])],
        [numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(factors, "factors")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    assert word(model, right) == "right"
    slim = word(onnxslim.slim(model), right)
    without = word(onnxslim.slim(model, skip_fusion_patterns=["FusionConvMul"]), right)
    print(f"factors {shape} of the {of}: {slim}, without the fusion {without}")
    assert slim == expected and without == "right"
PY
venv/bin/python slim.py 2>/dev/null
