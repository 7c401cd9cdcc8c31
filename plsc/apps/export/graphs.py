"""Write the network with its preprocessing as one static graph, run the graph with Paddle Inference or ONNX
Runtime, and compare its embeddings with the network's."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import inference, nn

from plsc.errors import UserError, in_one_line
from plsc.evaluation.search import unit_rows
from plsc.training.embed import with_mirror
from plsc.utils.files import temporary_home

TOLERANCE = 1e-4  # largest difference in a component of a unit embedding


class _WithPreprocessing(nn.Layer):
    """Computes unit embeddings from raw images.

    An image that was already normalised gets zeros (`Preprocessing.darkest`). Otherwise all such images would
    have similar embeddings, and every pair would be accepted.
    """

    def __init__(self, model: nn.Layer, preprocessing: Any, flip: bool):
        super().__init__()
        self.model = model
        self.preprocessing = preprocessing
        self.flip = flip

    def forward(self, images):
        embedding = with_mirror(self.model, self.preprocessing(images), self.flip)
        square = paddle.sum(embedding * embedding, axis=1, keepdim=True)
        # The rule of plsc.evaluation.search.unit_rows: zeros stay zeros, and inf * 0 turns an overflow into
        # NaN. `square == 0` would not do, because Paddle's operator is true for every number below 1e-8.
        inverse = paddle.rsqrt(square + paddle.cast(square <= 0, "float32")) + square * 0
        if self.preprocessing.darkest is None:  # Paddle 2.6 cannot convert an assignment in a condition
            return embedding * inverse
        brightest = paddle.max(paddle.flatten(images, 1), axis=1, keepdim=True)
        return embedding * inverse * paddle.cast(brightest > self.preprocessing.darkest, "float32")


@contextlib.contextmanager
def _errors_as_user_error(what: str) -> Iterator[None]:
    """Turn any exception of an engine into a UserError.

    The engines raise many types with many lines. The message is `what` and the last line.
    """
    try:
        yield
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UserError(f"{what}: {lines[-1] if lines else repr(error)}") from error


def save_paddle(model: nn.Layer, preprocessing: Any, flip: bool, folder: Path) -> dict:
    """Write the graph for Paddle Inference to `folder`.

    Returns the names for its files ("files", "model", "params") and its "input" and "output".
    """
    spec = paddle.static.InputSpec([None, *preprocessing.shape], "float32", "image")
    what = "Export: this backbone cannot be saved as one static graph"
    with _errors_as_user_error(what), temporary_home():
        # By default Paddle 3 compiles with CINN, and every version splits a network that cannot be one graph.
        static = paddle.jit.to_static(
            _WithPreprocessing(model, preprocessing, flip), input_spec=[spec], full_graph=True, backend=None
        )
        paddle.jit.save(static, str(folder / "inference"))
        files = sorted(path.name for path in folder.iterdir())
        program = next(file for file in files if file.endswith((".json", ".pdmodel")))
        output = _predictor(folder / program).get_output_names()[0]
    names = {"model": program, "params": "inference.pdiparams", "input": "image", "output": output}
    return {"files": files, **names}


def _predictor(program: Path) -> inference.Predictor:
    # enable_memory_optim is not used, because on the CPU it raises for Paddle 3's .json programs.
    config = inference.Config(str(program), str(program.with_suffix(".pdiparams")))
    config.disable_glog_info()
    return inference.create_predictor(config)


def run_graph(folder: Path, names: dict, images: np.ndarray) -> np.ndarray:
    """Run an exported graph.

    Args:
        folder: export folder.
        names: the graph's file, input and output names.
        images: float32 [B, *shape], raw pixels.

    Returns embeddings [B, D].
    """
    if names["model"].endswith(".onnx"):
        import onnxruntime

        session = onnxruntime.InferenceSession(
            str(folder / names["model"]), providers=["CPUExecutionProvider"]
        )
        return session.run([names["output"]], {names["input"]: images})[0]
    predictor = _predictor(folder / names["model"])
    predictor.get_input_handle(names["input"]).copy_from_cpu(images)
    predictor.run()
    return predictor.get_output_handle(names["output"]).copy_to_cpu()


def make_example(
    model: nn.Layer, preprocessing: Any, flip: bool, batch: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return random images, float32 [batch, *shape], and the training graph's embeddings of them, float64
    [batch, D] of length 1.

    Raises UserError if the network fails on such images, as a user's own network may.
    """
    images = np.random.default_rng(0).integers(0, 256, (batch, *preprocessing.shape)).astype(np.float32)
    try:
        with paddle.no_grad():
            embedding = with_mirror(model, preprocessing(paddle.to_tensor(images)), flip).numpy()
    except Exception as error:  # any error, in the user's class or in Paddle
        raise UserError(
            f"Export: the network fails on random pixels 0 to 255, on which its graphs are compared: "
            f"{in_one_line(error)}; change its forward to accept every such pixel, for example with "
            "ids.clip(0, count - 1) before an Embedding"
        ) from error
    return images, unit_rows(embedding.astype(np.float64))


def check(folder: Path, kind: str, names: dict, images: np.ndarray, expected: np.ndarray) -> dict:
    """Compare an exported graph with the training graph.

    Args:
        folder: export folder.
        kind: the graph's format, as in Export.formats.
        names: the graph's file, input and output names.
        images, expected: an example of `make_example`.

    Returns the entry for "checks" in preprocessing.json.

    Raises UserError if the graph cannot run this batch, or if a component differs by more than TOLERANCE.
    """
    where = f"Export.formats: the {kind} graph of this backbone, at batch {len(images)},"
    with _errors_as_user_error(f"{where} does not run"):
        got = run_graph(folder, names, images)
    if got.shape != expected.shape:
        raise UserError(
            f"{where} gives {list(got.shape)} instead of {list(expected.shape)}: is the batch size fixed?"
        )
    difference = float(np.max(np.abs(got - expected)))
    if not difference <= TOLERANCE:
        raise UserError(
            f"{where} differs from the training graph by {difference:.3g}; at most {TOLERANCE:g} is allowed"
        )
    return {"format": kind, "batch": len(images), "max_difference": difference}
