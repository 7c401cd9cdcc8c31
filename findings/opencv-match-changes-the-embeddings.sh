#!/usr/bin/env bash
# opencv-python-headless 5.0.0 and 4.12.0, CPU.
#
# Guess: cv2.FaceRecognizerSF.match(first, second) reads two embeddings and returns their score.
# Seen: it also writes to both. After the call, the caller's arrays have the norm 1. The norm is often kept as
# a measure for the photo's quality, or to compute a mean over several photos: both then depend on which
# embeddings were compared before. A read-only array is not protected. Give copies, or compute the cosine with
# NumPy. (OpenCV's pull request 29804 mends it. No release on the package index has it.)
#
#     5.0.0: norms before 5 and 13, after 1 and 1, score 0.3077
#     4.12.0: norms before 5 and 13, after 1 and 1, score 0.3077
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat >match.py <<'PY'
import cv2
import numpy as np
import onnx
from onnx import TensorProto, helper

# match does not use the network, but the class needs one: this one returns the picture's numbers.
shapes = [1, 3, 112, 112], [1, 3 * 112 * 112]
ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in zip("xy", shapes)]
graph = helper.make_graph([helper.make_node("Flatten", ["x"], ["y"])], "net", ends[:1], ends[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
model.ir_version = 8
onnx.save(model, "net.onnx")
recognizer = cv2.FaceRecognizerSF.create("net.onnx", "")
first, second = np.array([[3, 4, 0]], np.float32), np.array([[0, 5, 12]], np.float32)
score = recognizer.match(first, second, cv2.FaceRecognizerSF_FR_COSINE)
norms = [float(np.linalg.norm(each)) for each in (first, second)]
print(f"{cv2.__version__}: norms before 5 and 13, after {norms[0]:.0f} and {norms[1]:.0f}, score {score:.4f}")
assert np.allclose(norms, 1) and abs(score - 20 / 65) < 1e-4
PY
for version in "5.0.0.93 numpy==2.4.6" "4.12.0.88 numpy==2.2.6"; do
    read -r opencv numpy <<<"$version"
    python3 -m venv "venv-$opencv"
    "venv-$opencv/bin/pip" install --quiet "opencv-python-headless==$opencv" "$numpy" onnx==1.17.0
    "venv-$opencv/bin/python" match.py 2>/dev/null
done
