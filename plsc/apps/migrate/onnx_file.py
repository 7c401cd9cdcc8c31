"""Read the weights of an ONNX file, as torch's exporter writes networks of convolutions, by the layers of
ours.

The exporter puts a batch norm that follows a convolution into its weights and bias, and numbers the tensors.
So nodes and layers are matched in their order. Such a norm becomes one that only adds the bias: outputs stay,
but its statistics are lost, and it cannot be trained on. Published networks are such files (see weights.py).
Try it:

    plsc import w600k_r50.onnx --model IResNet50 --output imported
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from paddle import nn

from plsc.errors import UserError, reading, shown
from plsc.utils.files import read_regular

_NORM = "BatchNormalization"
_OPS = {
    nn.Conv2D: ("Conv",),
    nn.BatchNorm2D: (_NORM,),
    nn.BatchNorm1D: (_NORM,),
    nn.PReLU: ("PRelu",),
    nn.Linear: ("Gemm", "MatMul"),
}
# Nodes between the layers: sums of residuals, and what only changes the shape.
_BETWEEN = (
    *("Add", "Flatten", "Reshape", "Identity", "Dropout", "Constant"),
    *("Shape", "Gather", "Concat", "Unsqueeze"),
)
# Of ONNX's operators.
_DEFAULTS = {
    "pads": [0] * 4,
    "strides": [1, 1],
    "dilations": [1, 1],
    "group": 1,
    "auto_pad": b"NOTSET",
    "alpha": 1.0,
    "beta": 1.0,
    "transA": 0,
    "transB": 0,
    "epsilon": float(np.float32(1e-5)),
}
_PARTS = ("weight", "bias", "running_mean", "running_var")


def read_onnx(path: str, backbone: nn.Layer) -> dict[str, np.ndarray]:
    """Read the tensors of an ONNX file, with the names and shapes that torch gives those of `backbone`'s
    layers.

    Raises MissingFileError, and UserError for a damaged file or another network.
    """
    graph = _Graph(path)
    network = type(backbone).__name__
    nodes = [node for node in graph.nodes if node.op_type not in _BETWEEN or graph.adds_constant(node)]
    tensors: dict[str, np.ndarray] = {}
    taken = 0
    bias = None  # of the layer before, if its norm is in it
    for name, layer in backbone.named_sublayers():
        ops = next((ops for kind, ops in _OPS.items() if isinstance(layer, kind)), None)
        if ops is None:
            continue
        if bias is not None and ops == (_NORM,):
            tensors.update(_norm_that_adds(name, layer, bias))
            bias = None
            continue
        node = nodes[taken] if taken < len(nodes) else None
        if node is None or node.op_type not in ops or (bias is not None and bias.any()):
            found = (
                "the file ends" if node is None else f"the file has {shown(node.op_type)} {shown(node.name)}"
            )
            raise UserError(
                f"{shown(path)}: is no {network}: where {name} belongs, {found}; give another --model"
            )
        taken += 1
        given = graph.settings(node)
        differs = [f"{key} {given[key]}" for key, value in _settings(layer).items() if given[key] != value]
        if differs:
            raise UserError(
                f"{shown(path)}: is no {network}: {name} has {', '.join(differs)}; give another --model"
            )
        parts = [graph.constant(tensor) for tensor in node.input[1:]]
        bias = None
        if isinstance(layer, (nn.Conv2D, nn.Linear)):
            if node.op_type == "MatMul" or (node.op_type == "Gemm" and not given["transB"]):
                parts[0] = parts[0].T  # as torch has it, [outputs, inputs]
            if not graph.is_normalised(node):
                bias = np.zeros(parts[0].shape[:1], np.float32)
                if layer.bias is None and len(parts) > 1:
                    bias = parts.pop()
        tensors.update({f"{name}.{part}": value for part, value in zip(_PARTS, parts)})
    if taken < len(nodes):
        left = shown(nodes[taken].op_type)
        raise UserError(
            f"{shown(path)}: is no {network}: {left} {shown(nodes[taken].name)} is left over; give another --model"
        )
    return tensors


def _norm_that_adds(name: str, layer: nn.Layer, bias: np.ndarray) -> dict[str, np.ndarray]:
    one = np.ones_like(bias)
    # The norm divides by the root of variance + epsilon.
    parts = (one, bias, np.zeros_like(bias), one - np.float32(layer._epsilon))
    return {f"{name}.{part}": value for part, value in zip(_PARTS, parts)}


def _settings(layer: nn.Layer) -> dict[str, Any]:
    """Return the attributes that a layer's node has to have."""
    if isinstance(layer, nn.Conv2D):
        padding, stride, dilation = (
            [value] * 2 if isinstance(value, int) else list(value)
            for value in (layer._padding, layer._stride, layer._dilation)
        )
        return {
            "pads": padding * 2,
            "strides": stride,
            "dilations": dilation,
            "group": layer._groups,
            "auto_pad": b"NOTSET",
        }
    if isinstance(layer, nn.Linear):
        return {"alpha": 1.0, "beta": 1.0, "transA": 0}
    return {"epsilon": float(np.float32(layer._epsilon))} if hasattr(layer, "_epsilon") else {}


def import_onnx(path: str) -> ModuleType:
    """Import the package that reads `path`. UserError if it is not installed."""
    try:
        import onnx
    except ImportError as error:
        raise UserError(f'{shown(path)}: ONNX is read by onnx: pip install "plsc[export]"') from error
    return onnx


class _Graph:
    """The nodes and constants of an ONNX file."""

    def __init__(self, path: str):
        onnx = import_onnx(path)
        from google.protobuf.message import DecodeError

        with reading(path):
            data = read_regular(path)
        try:
            model = onnx.load_model_from_string(data)
            onnx.checker.check_model(model)
        except (DecodeError, onnx.checker.ValidationError) as error:
            raise UserError(
                f"{shown(path)}: is no ONNX file, or is damaged or cut off; fetch it again"
            ) from error
        self.nodes = list(model.graph.node)
        self._path = path
        self._onnx = onnx
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self._makers = {name: node for node in self.nodes for name in node.output}
        self._normalised = {node.input[0] for node in self.nodes if node.op_type == _NORM}

    def adds_constant(self, node: Any) -> bool:
        """Say whether a node is a sum with a constant, which is no residual's."""
        return node.op_type == "Add" and any(name in self._tensors for name in node.input)

    def is_normalised(self, node: Any) -> bool:
        """Say whether a batch norm takes what the node gives."""
        return bool(self._normalised.intersection(node.output))

    def settings(self, node: Any) -> dict[str, Any]:
        """Return the attributes of a node by name, with the defaults of those that matter here."""
        return {
            **_DEFAULTS,
            **{each.name: self._onnx.helper.get_attribute_value(each) for each in node.attribute},
        }

    def constant(self, name: str) -> np.ndarray:
        """Return the values of a constant input of a node. UserError if it is none."""
        maker = self._makers.get(name)
        if maker is not None and maker.op_type in ("Identity", "Unsqueeze"):
            return self.constant(
                maker.input[0]
            )  # a slope as [channels, 1, 1], or a tensor that is there twice
        tensor = self._tensors.get(name)
        if maker is not None and maker.op_type == "Constant":
            tensor = self.settings(maker).get("value")
        if tensor is None or tensor.external_data:
            raise UserError(f"{shown(self._path)}: the values of {shown(name)} are not in the file")
        try:
            return self._onnx.numpy_helper.to_array(tensor).astype(np.float32)
        except (ValueError, TypeError) as error:  # text, or of a type that the package does not know
            raise UserError(
                f"{shown(self._path)}: {shown(name)} has no numbers; give another file"
            ) from error
