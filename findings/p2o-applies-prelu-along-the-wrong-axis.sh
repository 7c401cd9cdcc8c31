#!/usr/bin/env bash
# p2o 0.1.2 with paddlepaddle 3.3.1, onnxruntime 1.32.0, CPU.
#
# Guess: a converted PReLU with one slope a channel multiplies the negative numbers of each channel by its
# slope.
# Seen: p2o writes the slopes as [C], which ONNX aligns with the last axis, the width. If the width is C, each
# column gets the slope of a channel: wrong numbers without a message. For any other width ONNX Runtime
# refuses to run the graph.
#
#     width 4, 4 channels: converted, largest difference 1.33
#     width 6, 4 channels: converted, ONNX Runtime refuses
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet paddlepaddle==3.3.1 numpy==2.4.6 setuptools onnxruntime==1.32.0 p2o==0.1.2
cat >slopes.py <<'PY'
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import paddle
from paddle import nn
from paddle.static import InputSpec

onnxruntime.set_default_logger_severity(4)
program = Path(sys.executable).with_name("p2o")
paddle.seed(0)
for width in (4, 6):
    net = nn.Sequential(nn.Conv2D(1, 4, 1), nn.PReLU(4))
    net[1]._weight.set_value(paddle.to_tensor([0.1, 0.2, 0.3, 0.4]))
    net.eval()
    spec = InputSpec([1, 1, width, width], "float32")
    paddle.jit.save(net, f"net{width}", input_spec=[spec])
    files = [f"net{width}.json", f"net{width}.pdiparams", f"net{width}.onnx"]
    subprocess.run([program, *files], check=True, capture_output=True)
    x = np.random.default_rng(0).standard_normal((1, 1, width, width)).astype(np.float32)
    session = onnxruntime.InferenceSession(files[2])
    try:
        (found,) = session.run(None, {session.get_inputs()[0].name: x})
    except Exception:
        print(f"width {width}, 4 channels: converted, ONNX Runtime refuses")
        assert width == 6
    else:
        difference = np.abs(found - net(paddle.to_tensor(x)).numpy()).max()
        print(f"width {width}, 4 channels: converted, largest difference {difference:.2f}")
        assert width == 4 and difference > 0.1
PY
venv/bin/python slopes.py 2>/dev/null | grep width
