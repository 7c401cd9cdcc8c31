"""Run an ONNX file that embeds pictures, written by plsc or by another program.

Only a file from plsc states how to prepare its pictures. For any other file this is derived from its inputs
and its first nodes. Before any photo is read, the file is run once on two pictures to check its outputs.
"""

import json
from typing import Any

import numpy as np

from plsc.apps.faces.alignment import SIZE
from plsc.errors import UserError, escape
from plsc.utils.preprocessing import Preprocessing

_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}
_NORMALISING = {"Sub", "Add", "Mul", "Div", "BatchNormalization"}
_PASSING = {"Cast", "Identity", "Transpose"}
_ALIKE = 0.9999  # maximum cosine between the embeddings of two unrelated pictures
_SHORTEST = 8  # an embedding's minimum length


class OnnxFile:
    """An ONNX file that ONNX Runtime runs.

    Args:
        path: the file's path.

    Raises UserError if the file does not embed pictures, or if it gives two unrelated pictures the same
    embedding.

    Attributes:
        preprocessing: how its pictures are prepared.
        card: the metadata that `plsc export` wrote into the file. None if another program wrote the file.
    """

    def __init__(self, path: str):
        self._path = escape(path)
        try:
            import onnx
            import onnxruntime
        except ImportError as error:
            raise UserError(f"{self._path}: needs {error.name}: pip install onnx onnxruntime") from None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # suppress a warning for each initializer that is also an input
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # noqa: BLE001 (ONNX Runtime raises many types, with long texts)
            reason = escape(str(error).split("\n")[0])
            raise UserError(f"{self._path}: ONNX Runtime cannot open it ({reason})") from None
        shape = self._read_input()
        self.card = json.loads(self._session.get_modelmeta().custom_metadata_map.get("plsc", "null"))
        if self.card:  # the graph prepares raw pixels
            self.preprocessing = Preprocessing(shape, 0.0, 1.0, self.card["preprocessing"]["channels"])
        elif self._type == np.uint8 or _normalises(onnx.load(path, load_external_data=False).graph):
            self.preprocessing = Preprocessing(shape, 0.0, 1.0)
        else:
            self.preprocessing = Preprocessing(shape)
        self._output = 0
        self._check()

    def _read_input(self) -> tuple[int, int, int]:
        """Read the input's type, layout and batch size. Return its pictures' shape [C, H, W]."""
        inputs = self._session.get_inputs()
        described = ", ".join(f"{each.type} {each.shape}" for each in inputs)
        wanted = f"{self._path}: takes {described}; a network for pictures has one input [n, 3, H, W]"
        if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type not in _TYPES:
            raise UserError(f"{wanted} of float32, float16 or uint8")
        self._input, self._type = inputs[0].name, _TYPES[inputs[0].type]
        batch, *sizes = (size if isinstance(size, int) and size > 0 else None for size in inputs[0].shape)
        self._batch = batch  # None means any size
        self._channels_last = sizes[0] not in (1, 3) and sizes[2] in (1, 3)
        channels, height, width = (sizes[2], *sizes[:2]) if self._channels_last else sizes
        if channels not in (1, 3):
            raise UserError(f"{wanted}, or 1 for grey, or [n, H, W, 3]")
        return channels, height or SIZE, width or SIZE

    def _check(self) -> None:
        """Run two unrelated pictures, and choose the output that contains the embeddings.

        Raises UserError if the file does not embed pictures.
        """
        draw = np.random.default_rng(0)
        channels, height, width = self.preprocessing.shape
        plain = np.linspace(30, 250, channels * height * width).reshape(channels, height, width)
        noise = draw.integers(0, 256, plain.shape)
        pictures = np.stack([plain, noise]).astype(np.uint8)
        try:
            outputs = self._run(pictures)
        except Exception as error:  # noqa: BLE001 (ONNX Runtime raises many types, with long texts)
            reason = escape(str(error).split("\n")[0])
            raise UserError(
                f"{self._path}: does not run on pictures of {height} x {width} ({reason})"
            ) from None
        fitting = [
            number
            for number, output in enumerate(outputs)
            if len(output) == 2 and output[0].size >= _SHORTEST and output[0].size == max(output.shape[1:])
        ]
        if len(fitting) != 1:
            shapes = ", ".join(str([*output.shape]) for output in outputs)
            raise UserError(
                f"{self._path}: gives {shapes} for two pictures; must give one output [2, D], with D at "
                f"least {_SHORTEST}"
            )
        (self._output,) = fitting
        first, second = outputs[self._output].reshape(2, -1).astype(np.float64)
        lengths = np.linalg.norm(first) * np.linalg.norm(second)
        if not np.isfinite(lengths):
            raise UserError(f"{self._path}: gives NaN or infinity for a picture; the file is damaged")
        if not lengths or first @ second > _ALIKE * lengths:
            what = "the same embedding" if lengths else "zeros"
            raise UserError(
                f"{self._path}: gives {what} for two pictures that have nothing in common; it expects "
                "other pixels, or was not trained"
            )

    def _run(self, samples: np.ndarray) -> list[np.ndarray]:
        """Run samples uint8 [B, C, H, W] in the network's batch size. Return all its outputs."""
        pixels = self.preprocessing(samples).astype(self._type)
        if self._channels_last:
            pixels = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))
        size = self._batch or len(pixels)
        rest = -len(pixels) % size
        pixels = np.concatenate([pixels, pixels[:1].repeat(rest, axis=0)])
        parts = [
            self._session.run(None, {self._input: pixels[start : start + size]})
            for start in range(0, len(pixels), size)
        ]
        return [np.concatenate(output)[: len(samples)] for output in zip(*parts)]

    def embed(self, samples: np.ndarray) -> np.ndarray:
        """Compute embeddings of any length, float32 [B, D], for samples uint8 [B, C, H, W]."""
        return self._run(samples)[self._output].reshape(len(samples), -1).astype(np.float32)


def _normalises(graph: Any) -> bool:
    """Return whether a graph's first nodes normalise pixels.

    MXNet's face networks begin with Sub and Mul, or with BatchNormalization.
    """
    constants = {initializer.name for initializer in graph.initializer}
    (name,) = (each.name for each in graph.input if each.name not in constants)
    while True:
        readers = [node for node in graph.node if name in node.input]
        if len(readers) != 1 or readers[0].op_type not in _NORMALISING | _PASSING:
            return False
        if readers[0].op_type in _NORMALISING:
            return True
        name = readers[0].output[0]
