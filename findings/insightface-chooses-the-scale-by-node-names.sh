#!/usr/bin/env bash
# insightface 2.1 with onnx 1.19.1, onnxruntime 1.23.2, opencv-python-headless 4.12.0, CPU.
#
# Guess: insightface's ArcFaceONNX gives the same embeddings for two ONNX files with the same operators and
# weights.
# Seen: it reads the names of the first eight nodes. Names are comments in ONNX. If one begins with Sub or
# _minus and one with Mul or _mul, the network gets the pixels as they are. Otherwise they are mapped to -1 to 1
# first. A network that maps its pixels itself, but whose nodes are called /Sub and /Mul, as PyTorch names them,
# or have no names, therefore maps them twice. All photos then look alike: two random images have the cosine
# 1.0000. There is no message. Set input_mean = 0.0 and input_std = 1.0 on the object. (We found no report.)
#
#     Sub_0, Mul_0: mean 0.0 std 1.0 cosine 0.2005
#     _minus0, _mul0: mean 0.0 std 1.0 cosine 0.2005
#     /Sub, /Mul: mean 127.5 std 127.5 cosine 1.0000
#     no names: mean 127.5 std 127.5 cosine 1.0000
#     /Sub, /Mul, set by hand: mean 0.0 std 1.0 cosine 0.2005
#     NumPy: cosine 0.2005
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --no-deps insightface==2.1
venv/bin/pip install --quiet numpy==2.2.6 onnx==1.19.1 onnxruntime==1.23.2 opencv-python-headless==4.12.0.88 \
    tqdm==4.67.1 requests==2.32.5 scipy==1.16.3 scikit-image==0.25.2 2>/dev/null
cat >names.py <<'PY'
import numpy as np
import onnx
from insightface.model_zoo.arcface_onnx import ArcFaceONNX
from onnx import TensorProto, helper, numpy_helper

rng = np.random.default_rng(0)
weight = rng.standard_normal((64, 3 * 16 * 16)).astype(np.float32) / 30
images = list(rng.integers(0, 256, (2, 16, 16, 3)).astype(np.uint8))


def network(minus, times):
    graph = helper.make_graph(
        [
            helper.make_node("Sub", ["x", "mean"], ["a"], name=minus),
            helper.make_node("Mul", ["a", "scale"], ["b"], name=times),
            helper.make_node("Flatten", ["b"], ["c"]),
            helper.make_node("Gemm", ["c", "weight"], ["y"], transB=1),
        ],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 64])],
        [
            numpy_helper.from_array(weight, "weight"),
            numpy_helper.from_array(np.float32(127.5), "mean"),
            numpy_helper.from_array(np.float32(1 / 127.5), "scale"),
        ],
    )
    opset = [helper.make_opsetid("", 13)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), "network.onnx")
    return ArcFaceONNX("network.onnx")


def cosine(name, model):
    first, second = model.get_feat(images)
    found = model.compute_sim(first, second)
    print(f"{name}: mean {model.input_mean} std {model.input_std} cosine {found:.4f}")
    return found


planes = np.stack(images)[..., ::-1].transpose(0, 3, 1, 2).reshape(2, -1)  # BGR to RGB
first, second = ((planes - 127.5) / 127.5) @ weight.T
right = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
for names, twice in ((("Sub_0", "Mul_0"), False), (("_minus0", "_mul0"), False), (("/Sub", "/Mul"), True)):
    found = cosine(", ".join(names), network(*names))
    assert found > 0.999 if twice else abs(found - right) < 1e-4
assert cosine("no names", network("", "")) > 0.999
model = network("/Sub", "/Mul")
model.input_mean, model.input_std = 0.0, 1.0
assert abs(cosine("/Sub, /Mul, set by hand", model) - right) < 1e-4
print(f"NumPy: cosine {right:.4f}")
PY
venv/bin/python names.py 2>/dev/null
