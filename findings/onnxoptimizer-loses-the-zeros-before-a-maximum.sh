#!/usr/bin/env bash
# onnxoptimizer 0.4.2, onnx 1.19.1, onnxruntime 1.32.0, CPU.
#
# Guess: onnxoptimizer.optimize keeps the numbers of a graph.
# Seen: its default passes put a Pad with zeros into the MaxPool that follows. The padding of a MaxPool counts
# as minus infinity, not as 0. If all numbers of a window at the border are negative, the maximum was 0 and
# becomes negative. Outputs of a convolution or a PReLU are often negative. After a ReLU the graphs agree, so
# many networks hide it. There is no message. Leave the pass fuse_pad_into_pool out. An AveragePool is right.
# (onnxoptimizer's pull request 318 and onnxsim's issue 290 report it. onnxsim 0.8.1 is right.)
#
#     MaxPool: border 0.00 became -1.00, without the pass 0.00
#     AveragePool: border -0.44 became -0.44, without the pass -0.44
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet onnxoptimizer==0.4.2 onnx==1.19.1 onnxruntime==1.32.0 numpy==2.4.6
cat >pad.py <<'PY'
import numpy as np
import onnxoptimizer
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

x = np.full((1, 1, 4, 4), -1, np.float32)
passes = onnxoptimizer.get_fuse_and_elimination_passes()
assert "fuse_pad_into_pool" in passes


def corner(model):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return round(session.run(None, {"x": x})[0][0, 0, 0, 0].item(), 2)


padded = np.pad(x[0, 0], 1)
for op, right in (("MaxPool", padded[:3, :3].max()), ("AveragePool", padded[:3, :3].mean())):
    graph = helper.make_graph(
        [
            helper.make_node("Pad", ["x", "pads", "zero"], ["a"]),
            helper.make_node(op, ["a"], ["y"], kernel_shape=[3, 3], strides=[1, 1]),
        ],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 4, 4])],
        [
            numpy_helper.from_array(np.array([0, 0, 1, 1, 0, 0, 1, 1]), "pads"),
            numpy_helper.from_array(np.float32(0), "zero"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    before = corner(model)
    after = corner(onnxoptimizer.optimize(model))
    without = corner(onnxoptimizer.optimize(model, [name for name in passes if name != "fuse_pad_into_pool"]))
    print(f"{op}: border {before:.2f} became {after:.2f}, without the pass {without:.2f}")
    assert abs(before - right) < 0.01 and without == before
    assert after == (-1 if op == "MaxPool" else before)
PY
venv/bin/python pad.py 2>/dev/null
