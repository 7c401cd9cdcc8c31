#!/usr/bin/env bash
# opencv-python-headless 5.0.0, onnxruntime 1.32.0, faiss-cpu 1.15.1, Pillow 12.0.0, numpy 2.4.6, on a
# little-endian CPU.
#
# Guess: a function that takes NumPy arrays reads the numbers that NumPy shows, whatever the byte order, or
# raises.
# Seen: OpenCV and ONNX Runtime read the bytes as if they had the machine's order. Pillow gives an array with
# the other order for 16-bit TIFF files that begin with MM, as infrared cameras write them. OpenCV takes their
# grey level 1000 for 59395. Dividing such an array by 65535 in NumPy mends the order, resizing it by OpenCV
# first does not. ONNX Runtime takes 1.0 in ">f4" for 4.6e-41, so an embedding is that of a black image. There
# is no message, and NumPy prints the right numbers. faiss and cv2.imread are right. Give
# array.astype(array.dtype.newbyteorder("=")). (We found no report.)
#
#     pixel 1000 of a TIFF file: NumPy 1000, cv2.imread 1000, cv2.resize of Pillow's array 59395, mended 1000
#     1.0 in >f4: NumPy 1.0, faiss 1.0, ONNX Runtime 4.6e-41, mended 1.0
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet opencv-python-headless==5.0.0.93 onnx==1.17.0 onnxruntime==1.32.0 faiss-cpu==1.15.1 \
    Pillow==12.0.0 numpy==2.4.6
cat >order.py <<'PY'
import cv2
import faiss
import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from PIL import Image

Image.fromarray(np.full((4, 4), 1000, ">u2")).save("infrared.tif")
with open("infrared.tif", "rb") as file:
    assert file.read(2) == b"MM"
photo = np.asarray(Image.open("infrared.tif"))
read = cv2.imread("infrared.tif", cv2.IMREAD_UNCHANGED)[0, 0]
resized = cv2.resize(photo, (2, 2))[0, 0]
mended = cv2.resize(photo.astype(photo.dtype.newbyteorder("=")), (2, 2))[0, 0]
print(
    f"pixel 1000 of a TIFF file: NumPy {photo[0, 0]}, cv2.imread {read}, "
    f"cv2.resize of Pillow's array {resized}, mended {mended}"
)
assert photo[0, 0] == read == mended == 1000 and resized == 59395

graph = helper.make_graph(
    [helper.make_node("Identity", ["x"], ["y"])],
    "graph",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1])],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
session = onnxruntime.InferenceSession(model.SerializeToString())
one = np.ones((1, 1), ">f4")
index = faiss.IndexFlatIP(1)
index.add(one)
kept = index.reconstruct(0)[0]
(taken,) = session.run(None, {"x": one})
(right,) = session.run(None, {"x": one.astype(one.dtype.newbyteorder("="))})
print(
    f"1.0 in >f4: NumPy {one[0, 0]}, faiss {kept}, ONNX Runtime {taken[0, 0]:.1e}, mended {right[0, 0]}"
)
assert one[0, 0] == kept == right[0, 0] == 1 and 0 < taken[0, 0] < 1e-40
PY
venv/bin/python order.py 2>/dev/null
