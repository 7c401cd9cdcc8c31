"""Write the network with its preprocessing as one static graph, run it by Paddle Inference or ONNX Runtime,
and compare."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import inference, nn

from plsc.apps.export.card import noun_of
from plsc.data.preprocessing import DARKEST
from plsc.errors import UserError

MODEL = "model.onnx"
TOLERANCE = 1e-4  # of each component of an embedding of length 1


class _WithPreprocessing(nn.Layer):
    """Computes embeddings of length 1: samples -> preprocessing -> `model` -> division by the length."""

    def __init__(self, model: nn.Layer, preprocessing: Any):
        super().__init__()
        self.model = model
        self.preprocessing = preprocessing

    def forward(self, samples):
        return self.embed(samples)

    def embed(self, samples):
        embedding = self.model(self.preprocessing(samples))
        square = paddle.sum(embedding * embedding, axis=1, keepdim=True)
        return embedding * paddle.rsqrt(paddle.clip(square, min=1e-24))


class _OfPixels(_WithPreprocessing):
    """Computes the same, but zeros for an image that was normalised before."""

    def forward(self, samples):  # without super(), which Paddle 2.6 does not find in a static graph
        brightest = paddle.max(paddle.flatten(samples, 1), axis=1, keepdim=True)
        return self.embed(samples) * paddle.cast(brightest > DARKEST, "float32")


@contextlib.contextmanager
def errors_as_user_error(what: str) -> Iterator[None]:
    """Raise UserError with `what` and the last line in place of the engines' errors of many kinds and
    lines."""
    try:
        yield
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UserError(f"{what}: {lines[-1] if lines else repr(error)}") from error


def save_paddle(model: nn.Layer, preprocessing: Any, folder: Path) -> dict:
    layer = (_OfPixels if preprocessing.is_image else _WithPreprocessing)(model, preprocessing)
    name = noun_of(preprocessing)
    spec = paddle.static.InputSpec([None, *preprocessing.shape], "float32", name)
    with errors_as_user_error("Export: this backbone cannot be saved as one static graph"):
        # By default Paddle 3 compiles with CINN, and both cut what cannot be one graph into pieces.
        static = paddle.jit.to_static(layer, input_spec=[spec], full_graph=True, backend=None)
        paddle.jit.save(static, str(folder / "inference"))
        names = sorted(path.name for path in folder.iterdir())
        program = next(name for name in names if name.endswith((".json", ".pdmodel")))
        output = _predictor(folder / program).get_output_names()[0]
    return {
        "files": names,
        "model": program,
        "params": "inference.pdiparams",
        "input": name,
        "output": output,
    }


def save_onnx(folder: Path, source: dict, opset: int) -> dict:
    import onnx
    import paddle2onnx

    try:
        # Given a file to write, it would fold constants with polygraphy, which pip-installs packages unasked.
        text = paddle2onnx.export(
            str(folder / source["model"]), str(folder / source["params"]), opset_version=opset
        )
    except UnboundLocalError as error:  # how paddle2onnx 2.1 ends after it has logged its own error
        raise UserError(
            "Export.formats: paddle2onnx cannot convert this backbone (its message is above): "
            "set Export.formats=[paddle]"
        ) from error
    model = onnx.load_from_string(text)
    _rename(model.graph, model.graph.output[0].name, "embedding")
    _drop_unused_constants(model.graph)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(folder / MODEL))
    made = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    names = {"files": [MODEL], "model": MODEL, "input": source["input"], "output": "embedding"}
    return {**names, "opset": made}


def _rename(graph, old: str, new: str) -> None:
    """Call the output `new` and the open axis "batch" (paddle2onnx: fetch_name_0, DynamicDimension.0)."""
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]
    graph.output[0].name = new
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"


def _drop_unused_constants(graph) -> None:
    """Remove the constants that paddle2onnx leaves behind: ONNX Runtime warns of each, whenever the graph is
    loaded."""
    used = {name for node in graph.node for name in node.input}
    for node in [node for node in graph.node if node.op_type == "Constant" and used.isdisjoint(node.output)]:
        graph.node.remove(node)


def _predictor(program: Path) -> inference.Predictor:
    # No enable_memory_optim: on the CPU it raises on Paddle 3's .json programs.
    config = inference.Config(str(program), str(program.with_suffix(".pdiparams")))
    config.disable_glog_info()
    return inference.create_predictor(config)


def open_graph(folder: Path, names: dict) -> Callable[[np.ndarray], np.ndarray]:
    """Load an exported graph. Returns what runs it: samples float32 [B, *shape] -> embeddings [B, D]."""
    if names["model"].endswith(".onnx"):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors; it warns of each constant that it removes
        session = onnxruntime.InferenceSession(
            str(folder / names["model"]), options, providers=["CPUExecutionProvider"]
        )
        return lambda samples: session.run([names["output"]], {names["input"]: samples})[0]
    predictor = _predictor(folder / names["model"])

    def run(samples: np.ndarray) -> np.ndarray:
        predictor.get_input_handle(names["input"]).copy_from_cpu(samples)
        predictor.run()
        return predictor.get_output_handle(names["output"]).copy_to_cpu()

    return run


def check(folder: Path, kind: str, names: dict, pixels: np.ndarray, expected: np.ndarray) -> dict:
    """Compare the exported with the training graph; UserError if it cannot run this batch or differs."""
    where = f"Export.formats: the {kind} graph of this backbone, at batch {len(pixels)},"
    with errors_as_user_error(f"{where} does not run"):
        got = open_graph(folder, names)(pixels)
    if got.shape != expected.shape:
        raise UserError(
            f"{where} gives {list(got.shape)} instead of {list(expected.shape)}: is the batch size fixed?"
        )
    difference = float(np.max(np.abs(got - expected)))
    if not difference <= TOLERANCE:
        raise UserError(
            f"{where} differs from the training graph by {difference:.3g}, allowed is {TOLERANCE:g}"
        )
    return {"format": kind, "batch": len(pixels), "max_difference": difference}
