#!/usr/bin/env bash
# opencv-python-headless 5.0.0 and 4.12.0, onnx 1.17.0, onnxruntime 1.32.0, CPU.
#
# Guess: cv2.dnn runs a convolution with auto_pad SAME_UPPER as ONNX describes it: if the padding cannot be
# equal on both sides, the extra row and column go to the end. Exporters of TensorFlow and Keras write this
# attribute.
# Seen: 5.0.0 puts them at the beginning, as SAME_LOWER demands. A convolution, a maximum pooling or an average
# pooling with a kernel of 3 and a stride of 2 is wrong if the picture's side is even, as 112 is. There is no
# message, and the shape is right. An odd side needs equal padding and is right. 4.12.0 is right. Write the
# padding into the graph as `pads` before OpenCV reads it.
#
#     5.0.0 side 111: Conv right, MaxPool right, AveragePool right
#     5.0.0 side 112: Conv wrong, MaxPool wrong, AveragePool wrong
#     5.0.0 side 112 with pads: Conv right, MaxPool right, AveragePool right
#     4.12.0 side 111: Conv right, MaxPool right, AveragePool right
#     4.12.0 side 112: Conv right, MaxPool right, AveragePool right
#     4.12.0 side 112 with pads: Conv right, MaxPool right, AveragePool right
#
# (Wrong means that numbers of about 1 differ by more than 0.5 from ONNX Runtime's. The window at the upper left
# corner is also compared with NumPy.)
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat >same.py <<'PY'
import sys

import cv2
import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

rng = np.random.default_rng(0)
kernel = rng.standard_normal((1, 1, 3, 3)).astype(np.float32)
kernel /= np.abs(kernel).max()


def graph(op, side, padding):
    out = -(-side // 2)
    names = ["x", "kernel"] if op == "Conv" else ["x"]
    node = helper.make_node(op, names, ["y"], kernel_shape=[3, 3], strides=[2, 2], **padding)
    made = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, side, side])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, out, out])],
        [numpy_helper.from_array(kernel, "kernel")] if op == "Conv" else [],
    )
    opset = [helper.make_opsetid("", 13)]
    return helper.make_model(made, opset_imports=opset, ir_version=8).SerializeToString()


def compare(side, padding):
    x = rng.standard_normal((1, 1, side, side)).astype(np.float32)
    words = []
    for op in ("Conv", "MaxPool", "AveragePool"):
        model = graph(op, side, padding)
        (right,) = onnxruntime.InferenceSession(model).run(None, {"x": x})
        if side % 2 == 0:  # SAME_UPPER: the first window begins at the corner
            window = x[0, 0, :3, :3]
            by_hand = {"Conv": (window * kernel[0, 0]).sum(), "MaxPool": window.max(), "AveragePool": window.mean()}
            assert abs(right[0, 0, 0, 0] - by_hand[op]) < 1e-5
        net = cv2.dnn.readNetFromONNX(np.frombuffer(model, np.uint8))
        net.setInput(x)
        found = net.forward()
        assert found.shape == right.shape
        difference = np.abs(found - right).max()
        assert difference < 1e-4 or difference > 0.5
        words.append(f"{op} {'right' if difference < 1e-4 else 'wrong'}")
    return ", ".join(words)


right = "Conv right, MaxPool right, AveragePool right"
same = {"auto_pad": "SAME_UPPER"}
seen = compare(111, same), compare(112, same), compare(112, {"pads": [0, 0, 1, 1]})
for name, words in zip(("side 111", "side 112", "side 112 with pads"), seen):
    print(f"{cv2.__version__} {name}: {words}")
assert seen == (right, right.replace("right", sys.argv[1]), right)
PY
for case in "5.0.0.93 wrong" "4.12.0.88 right"; do
    read -r opencv word <<<"$case"
    python3 -m venv "venv-$opencv"
    "venv-$opencv/bin/pip" install --quiet "opencv-python-headless==$opencv" onnx==1.17.0 onnxruntime==1.32.0
    "venv-$opencv/bin/python" same.py "$word" 2>/dev/null
done
