"""Write the network with its preprocessing as one static graph, run it by Paddle Inference or ONNX Runtime,
and compare."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import inference, nn

from plsc.errors import UserError
from plsc.evaluation.search import unit_rows
from plsc.training.embed import with_mirror
from plsc.utils.files import temporary_home
from plsc.utils.preprocessing import DARKEST

TOLERANCE = 1e-4  # of each component of an embedding of length 1


class _WithPreprocessing(nn.Layer):
    """Computes embeddings of length 1 of images; zeros for one that was normalised before: all of these would
    be alike, and every pair be accepted."""

    def __init__(self, model: nn.Layer, preprocessing: Any, flip: bool):
        super().__init__()
        self.model = model
        self.preprocessing = preprocessing
        self.flip = flip

    def forward(self, images):
        embedding = with_mirror(self.model, self.preprocessing(images), self.flip)
        square = paddle.sum(embedding * embedding, axis=1, keepdim=True)
        # The rule of plsc.evaluation.search.unit_rows: zeros stay zeros, and inf * 0 makes an overflow NaN.
        # Not `square == 0`, which Paddle's operator takes all below 1e-8 to be.
        inverse = paddle.rsqrt(square + paddle.cast(square <= 0, "float32")) + square * 0
        brightest = paddle.max(paddle.flatten(images, 1), axis=1, keepdim=True)
        return embedding * inverse * paddle.cast(brightest > DARKEST, "float32")


@contextlib.contextmanager
def _errors_as_user_error(what: str) -> Iterator[None]:
    """Raise UserError with `what` and the last line in place of the engines' errors of many kinds and
    lines."""
    try:
        yield
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UserError(f"{what}: {lines[-1] if lines else repr(error)}") from error


def save_paddle(model: nn.Layer, preprocessing: Any, flip: bool, folder: Path) -> dict:
    """Write the graph of Paddle Inference to `folder`; return the names of files, input and output."""
    spec = paddle.static.InputSpec([None, *preprocessing.shape], "float32", "image")
    what = "Export: this backbone cannot be saved as one static graph"
    with _errors_as_user_error(what), temporary_home():
        # By default Paddle 3 compiles with CINN, and both cut what cannot be one graph into pieces.
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
    # No enable_memory_optim: on the CPU it raises on Paddle 3's .json programs.
    config = inference.Config(str(program), str(program.with_suffix(".pdiparams")))
    config.disable_glog_info()
    return inference.create_predictor(config)


def run_graph(folder: Path, names: dict, images: np.ndarray) -> np.ndarray:
    """Run an exported graph: images float32 [B, *shape] -> embeddings [B, D]."""
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
    """Make random images, float32, and the embeddings of length 1 that the training graph makes of them."""
    images = np.random.default_rng(0).integers(0, 256, (batch, *preprocessing.shape)).astype(np.float32)
    with paddle.no_grad():
        embedding = with_mirror(model, preprocessing(paddle.to_tensor(images)), flip).numpy()
    return images, unit_rows(embedding.astype(np.float64))


def check(folder: Path, kind: str, names: dict, images: np.ndarray, expected: np.ndarray) -> dict:
    """Compare the exported with the training graph; UserError if it cannot run this batch or differs."""
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
            f"{where} differs from the training graph by {difference:.3g}, allowed is {TOLERANCE:g}"
        )
    return {"format": kind, "batch": len(images), "max_difference": difference}
