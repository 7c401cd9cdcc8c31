"""Write the ONNX graph with paddle2onnx in a separate process.

For some layers paddle2onnx ends its process, by SystemExit or by a signal. For others it writes a graph that
computes other numbers. It therefore runs as a child process whose failure is reported in one line, and each
graph is compared with the network.
"""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import paddle
from paddle import nn

from plsc.errors import UserError, escape

MODEL = "model.onnx"
OPSET = 17  # version of ONNX's operators, which ONNX Runtime has read since 1.12
NEED_ONNX = frozenset({"onnx", "insightface"})  # formats in Export.formats that need ONNX
_NEEDED = ("paddle2onnx", "onnx", "onnxruntime")
_CONVERT = """
import sys, paddle2onnx
program, parameters, opset, target = sys.argv[1:]
# Given a file to write, it would fold constants with polygraphy, which pip-installs packages unasked.
text = paddle2onnx.export(program, parameters, opset_version=int(opset))
open(target, "wb").write(text)
"""
# Layers for which comparisons have shown that paddle2onnx 2.1 gives the same numbers, to 1e-4.
_CONVERTED = """
AvgPool2D BatchNorm BatchNorm1D BatchNorm2D Conv2D Conv2DTranspose Dropout ELU Flatten GELU Hardsigmoid
Hardswish Identity InstanceNorm2D LayerNorm LeakyReLU Linear LocalResponseNorm LogSigmoid MaxPool2D Mish
PReLU PixelShuffle ReLU ReLU6 SELU Sigmoid Silu Softmax Swish SyncBatchNorm Tanh Tanhshrink ThresholdedReLU
Unfold ZeroPad2D
"""


def why_no_onnx() -> str | None:
    """Return why this environment cannot write ONNX, with the remedy. Return None if it can."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if paddle.__version__.startswith("2."):
        return f"needs Paddle 3 (this is {paddle.__version__})"
    if "paddle2onnx" in missing and sys.version_info >= (3, 13):
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return f"needs paddle2onnx, which does not exist for Python {version}; use Python 3.10, 3.11 or 3.12"
    if missing:
        return f"needs {', '.join(missing)}: pip install -e '.[export]' in the clone of plsc"
    return None


def doubtful_layers(model: nn.Layer) -> Sequence[str]:
    """Return the class names for `model`'s layers that paddle2onnx is not known to convert correctly."""
    leaves = (layer for layer in model.sublayers(include_self=True) if not layer.sublayers())
    kinds = {type(leaf) for leaf in leaves if not type(leaf).__module__.startswith("plsc.")}
    return sorted({kind.__name__ for kind in kinds} - {*_CONVERTED.split()})


def save_onnx(folder: Path, source: dict, facts: dict) -> dict:
    """Convert the graph for Paddle Inference in `folder` to ONNX.

    Args:
        folder: export folder.
        source: the names in the graph for Paddle Inference.
        facts: the network's content for preprocessing.json. The file's metadata also contain it, under
            "plsc", so that `plsc gallery` needs only the ONNX file.

    Returns the ONNX graph's names.

    Raises UserError if paddle2onnx fails or writes an invalid graph.
    """
    import onnx

    target = folder / MODEL
    _run_converter(folder / source["model"], folder / source["params"], target)
    try:
        model = onnx.load(target)
        _rename(model.graph, model.graph.output[0].name, "embedding")
        _drop_unused_constants(model.graph)
        onnx.helper.set_model_props(model, {"plsc": json.dumps(facts)})
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # another program wrote the file, so several error types are possible
        raise UserError(f"paddle2onnx wrote no valid graph ({str(error).splitlines()[0]})") from error
    onnx.save(model, str(target))
    return {"files": [MODEL], "model": MODEL, "input": source["input"], "output": "embedding"}


def _run_converter(program: Path, parameters: Path, target: Path) -> None:
    arguments = [sys.executable, "-c", _CONVERT, *map(os.fspath, (program, parameters)), str(OPSET), target]
    child = subprocess.run(
        arguments, check=False, stdin=subprocess.DEVNULL, capture_output=True, errors="replace"
    )
    if child.returncode < 0:
        raise UserError(f"paddle2onnx was ended by {signal.Signals(-child.returncode).name}")
    if child.returncode or not target.is_file():
        text = re.sub("\x1b\\[[0-9;]*m", "", child.stdout + child.stderr)  # without colours
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        words = [line for line in lines if "error" in line.lower()] or lines
        last = f": {escape(words[-1])}" if words else ""
        raise UserError(f"paddle2onnx ended with exit code {child.returncode}{last}")


def _rename(graph, old: str, new: str) -> None:
    """Rename the output to `new`, and the dynamic axis to "batch".

    paddle2onnx names them fetch_name_0 and DynamicDimension.0.
    """
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]
    graph.output[0].name = new
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"


def _drop_unused_constants(graph) -> None:
    """Remove the unused constants that paddle2onnx writes.

    ONNX Runtime would warn about each one whenever it loads the graph.
    """
    used = {name for node in graph.node for name in node.input}
    for node in [node for node in graph.node if node.op_type == "Constant" and used.isdisjoint(node.output)]:
        graph.node.remove(node)
