"""Export the backbone to files that run without plsc, Paddle Inference and ONNX, checked against the training graph.

    image      float32 [batch, C, H, W]: raw pixels 0..255, of the preprocessing's size and channel order
    sample     float32 [batch, ...]: instead, of a data set whose samples are no images
    embedding  float32 [batch, D]: of length 1, so that a dot product is the cosine (zeros stay zeros)

Normalising the input and the embedding is part of the graph. What is left to do outside, and the cosine above
which two samples are of the same class, stands in preprocessing.json; check.* is a sample with its embedding, for
trying out one's own code, and README.txt says how.

Pixels that were normalised already would give embeddings that are all alike, and every comparison would be
accepted. So an image without a pixel above 3 gets an embedding of zeros, which resembles nothing: a mistake is
seen at once and accepts nobody. It takes one maximum. A truly black picture has nothing to recognise either.

Try it: `pytest tests/backbones/test_export.py`.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import paddle
from paddle import inference, nn

from plsc.errors import UserError
from plsc.utils.atomic_write import atomic_write
from plsc.utils.device import on_gpu
from plsc.utils.version import __version__

TOLERANCE = 1e-4  # of each component of an embedding of length 1
DARKEST = 3.0  # an image without a brighter pixel was normalised before, by whatever mean and deviation, or is black
VALUES = "raw pixels 0..255; normalisation is inside the graph"
RESIZE = "to the size, whatever the aspect ratio: area averages to shrink (cv2.INTER_AREA), linear to enlarge (cv2.INTER_LINEAR)"
_FILES = {f"inference.{end}" for end in ("json", "pdmodel", "pdiparams", "pdiparams.info")}
_FILES |= {"model.onnx", "preprocessing.json", "README.txt", "check.png", "check.npy", "check.json"}
_FILES |= {"contract.json"}  # what earlier versions called preprocessing.json


def export(
    model: nn.Layer,
    out_dir: str | os.PathLike,
    *,
    preprocessing: Any,
    formats: Sequence[str] = ("paddle", "onnx"),
    opset: int = 17,
    threshold: float | None = None,
    flip: bool = False,
    threshold_set: str | None = None,
    threshold_step: int | None = None,
    check_batches: Sequence[int] = (1, 8),
) -> dict:
    """Write `model` (prepared samples [B, *shape] -> embeddings [B, D]) to the folder `out_dir`, for any B.

    The folder appears, or replaces that of an earlier export, when all is written and every format agrees
    with the training graph in eval mode within TOLERANCE, both on the CPU. `model`, without data parallel's wrapper,
    stays as and where it is.

    Args:
        preprocessing: of the data set, a plsc.data.preprocessing.Preprocessing.
        formats: "paddle" (inference.json or .pdmodel, and .pdiparams), "onnx" (model.onnx).
        threshold: cosine above which two images are of the same class; None = not known.
        flip: whether it belongs to the sum of an image's embedding and its mirror image's; the graph makes one of them.
        threshold_set, threshold_step: the set it was computed on, and at which step.

    Returns: what preprocessing.json has (see _card), and "folder".
    Raises: UserError (missing packages, before anything is written; a model that does not export truly).
    """
    assert formats and set(formats) <= {"paddle", "onnx"}
    out = Path(os.path.abspath(out_dir))
    _check_tools(formats)
    _check_replaceable(out)
    with atomic_write(out) as tmp:
        tmp.mkdir(parents=True)
        with _on_cpu(model), _untouched(model):
            model.eval()
            examples = [_example(model, preprocessing, batch) for batch in check_batches]
            files = {"paddle": _save_paddle(model, preprocessing, tmp)}
            self_check = _write_self_check(tmp, model, preprocessing)
        if "onnx" in formats:
            files["onnx"] = _save_onnx(tmp, files["paddle"], opset)
        checks = [_check(tmp, kind, files[kind], *example) for kind in formats for example in examples]
        if "paddle" not in formats:
            for name in files.pop("paddle")["files"]:
                (tmp / name).unlink()
        card = _card(preprocessing, examples[0][1].shape[1], threshold, flip)
        card.update(threshold_set=threshold_set, threshold_step=threshold_step, files=files, checks=checks)
        (tmp / "README.txt").write_text(_readme(card, self_check))
        card["self_check"] = self_check
        (tmp / "preprocessing.json").write_text(json.dumps(card, indent=1) + "\n")
        if out.exists():
            shutil.rmtree(out)
    return {**card, "folder": str(out)}


def _card(preprocessing: Any, embedding_size: int, threshold: float | None, flip: bool) -> dict:
    """Make the content of preprocessing.json but "files" (per format: names of files, input, output) and "checks"."""
    shape = list(preprocessing.shape)
    # What is left to do. Mean and scale are not among it: a reader who saw them here would normalise once more.
    if preprocessing.is_image:
        values, left = VALUES, {"size": shape[1:], "channels": preprocessing.channels, "resize": RESIZE}
    else:
        values = (
            f"samples as in training ({preprocessing.dtype}), as float32; normalisation is inside the graph"
        )
        left = {"shape": shape, "dtype": preprocessing.dtype}
    inside = {
        "normalisation": f"({_noun(preprocessing, 'pixel', 'sample')} - mean) * scale",
        "mean": preprocessing.mean,
        "scale": preprocessing.scale,
    }
    if preprocessing.is_image:
        inside["not_raw_pixels"] = f"an image without a pixel above {DARKEST:g} gets an embedding of zeros"
    return {
        "plsc": __version__,
        "paddle": paddle.__version__,
        "embedding_size": embedding_size,
        "input": {"dtype": "float32", "shape": ["batch", *shape], "values": values},
        "output": {"dtype": "float32", "shape": ["batch", embedding_size], "length": 1},
        "preprocessing": left,
        "inside_the_graph": inside,
        "threshold": threshold,
        "threshold_of": "image and mirror image, embeddings summed, length 1"
        if flip
        else _noun(preprocessing),
    }


def _noun(preprocessing: Any, of_image: str = "image", other: str = "sample") -> str:
    return of_image if preprocessing.is_image else other


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
def _errors_as_user_error(what: str) -> Iterator[None]:
    """Raise UserError with `what` and the last line in place of the engines' errors of many kinds and lines."""
    try:
        yield
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UserError(f"{what}: {lines[-1] if lines else repr(error)}") from error


@contextlib.contextmanager
def _on_cpu(model: nn.Layer) -> Iterator[None]:
    """Compute inside the block on the CPU, as the exported graphs are run: a GPU's products may have fewer digits."""
    if not on_gpu():
        yield
        return
    device = paddle.get_device()
    paddle.set_device("cpu")
    model.to(device="cpu")
    try:
        yield
    finally:
        paddle.set_device(device)
        model.to(device=device)


@contextlib.contextmanager
def _untouched(model: nn.Layer) -> Iterator[None]:
    """Restore all layers' attributes: train or eval mode, and what to_static leaves (on 2.6 a `forward`)."""
    before = [(layer, dict(vars(layer))) for layer in model.sublayers(include_self=True)]
    for layer, attributes in before:
        layer._original_funcs = copy.copy(attributes["_original_funcs"])  # to_static changes it in place
    try:
        yield
    finally:
        for layer, attributes in before:
            vars(layer).clear()
            vars(layer).update(attributes)


def _example(model: nn.Layer, preprocessing: Any, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Make random samples, float32, and the embeddings of length 1 that the training graph makes of them."""
    samples = _random_samples(preprocessing, batch).astype(np.float32)
    return samples, _embed(model, preprocessing, samples)


def _random_samples(preprocessing: Any, batch: int) -> np.ndarray:
    """Draw samples of the data set's dtype: pixels, small whole numbers, or normally distributed ones."""
    draws, shape = np.random.default_rng(0), (batch, *preprocessing.shape)
    dtype = np.dtype(preprocessing.dtype)
    if dtype.kind == "f":
        return draws.normal(size=shape).astype(dtype)
    return draws.integers(0, 256 if preprocessing.is_image else 100, shape).astype(dtype)


def _embed(model: nn.Layer, preprocessing: Any, samples: np.ndarray) -> np.ndarray:
    """Compute the training graph's embeddings of length 1, float64 [B, D]."""
    with paddle.no_grad():
        embedding = model(preprocessing(paddle.to_tensor(samples)))
    embedding = embedding.numpy().astype(np.float64)
    return embedding / np.maximum(np.linalg.norm(embedding, axis=1, keepdims=True), 1e-12)


def _write_self_check(folder: Path, model: nn.Layer, preprocessing: Any) -> dict:
    """Write a sample and the training graph's embedding of it, for trying out the code around the graph.

    An image is a .png where the channels are ones that a .png has, so that reading it and the order of its
    channels are tried, too; any other sample an .npy.
    """
    sample = _pattern(preprocessing.shape) if preprocessing.is_image else _random_samples(preprocessing, 1)[0]
    name = "check.png" if preprocessing.channels in _HOW_TO_READ else "check.npy"
    if name == "check.png":
        picture = sample[::-1] if preprocessing.channels == "RGB" else sample  # OpenCV writes BGR
        cv2.imwrite(str(folder / name), np.moveaxis(picture, 0, -1))
    else:
        np.save(folder / name, sample)
    embedding = _embed(model, preprocessing, sample[np.newaxis].astype(np.float32))[0]
    text = json.dumps(
        {_noun(preprocessing): name, "embedding": [round(number, 7) for number in embedding.tolist()]}
    )
    (folder / "check.json").write_text(text + "\n")
    return {_noun(preprocessing): name, "embedding": "check.json", "least_cosine": 0.999}


def _pattern(shape: tuple[int, int, int]) -> np.ndarray:
    """Draw an image whose channels and halves differ: exchanged or mirrored, it is another one. uint8 [C, H, W]."""
    channels, height, width = shape
    y, x = np.mgrid[0:height, 0:width]
    image = np.stack([(x * (5 + 2 * k) + y * (3 + k) + 60 * k) % 256 for k in range(channels)]).astype(
        np.uint8
    )
    image[0, height // 4 : height // 2, : width // 3] = 255
    return image


_HOW_TO_READ = {
    "RGB": "cv2.imread('check.png')[..., ::-1].transpose(2, 0, 1)  # OpenCV reads BGR, the graph takes RGB",
    "BGR": "cv2.imread('check.png').transpose(2, 0, 1)",
    "grey": "cv2.imread('check.png', cv2.IMREAD_GRAYSCALE)[None]",
}


_NOT_NORMALISED = [
    "Do not subtract a mean, do not divide by 255 or 127.5: the graph does what has to be done.",
    f"An image without a pixel above {DARKEST:g} was normalised before, or is black: its embedding is all zeros.",
    "",
]


def _about_images(left: dict) -> list[str]:
    return [
        f"channels   {left['channels']}",
        f"size       height and width {left['size']}; resized {RESIZE}",
    ]


def _readme(card: dict, self_check: dict) -> str:
    """Write the text of README.txt: input and output of the graph, and how to check one's own code."""
    noun = "image" if "image" in self_check else "sample"
    reading = _HOW_TO_READ.get(card["preprocessing"].get("channels"), "np.load('check.npy')")
    check = f"Check your code: {self_check[noun]} must get the embedding in check.json, with a cosine above"
    lines = [
        f"{noun:10} float32 [{', '.join(map(str, card['input']['shape']))}]: {card['input']['values']}.",
        *(_about_images(card["preprocessing"]) if noun == "image" else []),
        f"embedding  float32 [batch, {card['embedding_size']}] of length 1: the dot product of two is their cosine.",
        "",
        *(_NOT_NORMALISED if noun == "image" else []),
        check,
        f"{self_check['least_cosine']}. Below that, the {noun} is not what the graph takes (normalisation, order of the axes"
        + (", of the channels); 0 means" if noun == "image" else ")."),
        *(["that it was normalised."] if noun == "image" else []),
    ]
    if "onnx" in card["files"]:
        lines += [
            "",
            "    import json, cv2, numpy as np, onnxruntime",
            f"    {noun} = {reading}",
            "    session = onnxruntime.InferenceSession('model.onnx')",
            f"    embedding = session.run(None, {{'{noun}': {noun}[None].astype(np.float32)}})[0][0]",
            f"    assert embedding @ json.load(open('check.json'))['embedding'] > {self_check['least_cosine']}",
        ]
    elif "paddle" in card["files"]:
        names = card["files"]["paddle"]
        lines += [
            "",
            "    import json, cv2, numpy as np",
            "    from paddle import inference",
            f"    {noun} = {reading}",
            f"    config = inference.Config('{names['model']}', '{names['params']}')",
            "    predictor = inference.create_predictor(config)",
            f"    predictor.get_input_handle('{noun}').copy_from_cpu(np.ascontiguousarray({noun}[None], np.float32))",
            "    predictor.run()",
            f"    embedding = predictor.get_output_handle('{names['output']}').copy_to_cpu()[0]",
            f"    assert embedding @ json.load(open('check.json'))['embedding'] > {self_check['least_cosine']}",
        ]
    return "\n".join(lines) + "\n"


def _save_paddle(model: nn.Layer, preprocessing: Any, folder: Path) -> dict:
    layer = (_OfPixels if preprocessing.is_image else _WithPreprocessing)(model, preprocessing)
    name = _noun(preprocessing)
    spec = paddle.static.InputSpec([None, *preprocessing.shape], "float32", name)
    with _errors_as_user_error("Export: this backbone cannot be saved as one static graph"):
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


def _save_onnx(folder: Path, source: dict, opset: int) -> dict:
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
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(folder / "model.onnx"))
    made = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    return {"files": ["model.onnx"], "input": source["input"], "output": "embedding", "opset": made}


def _rename(graph, old: str, new: str) -> None:
    """Call the output `new` and the open axis "batch" (paddle2onnx: fetch_name_0, DynamicDimension.0)."""
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]
    graph.output[0].name = new
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"


def _predictor(program: Path) -> inference.Predictor:
    # No enable_memory_optim: on the CPU it raises on Paddle 3's .json programs.
    config = inference.Config(str(program), str(program.with_suffix(".pdiparams")))
    config.disable_glog_info()
    return inference.create_predictor(config)


def _run(folder: Path, kind: str, names: dict, pixels: np.ndarray) -> np.ndarray:
    if kind == "paddle":
        predictor = _predictor(folder / names["model"])
        predictor.get_input_handle(names["input"]).copy_from_cpu(pixels)
        predictor.run()
        return predictor.get_output_handle(names["output"]).copy_to_cpu()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors; it warns of each constant that it removes
    session = onnxruntime.InferenceSession(
        str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    return session.run([names["output"]], {names["input"]: pixels})[0]


def _check(folder: Path, kind: str, names: dict, pixels: np.ndarray, expected: np.ndarray) -> dict:
    """Compare the exported with the training graph; UserError if it cannot run this batch or differs."""
    where = f"Export.formats: the {kind} graph of this backbone, at batch {len(pixels)},"
    with _errors_as_user_error(f"{where} does not run"):
        got = _run(folder, kind, names, pixels)
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


def _check_tools(formats: Sequence[str]) -> None:
    if "onnx" not in formats:
        return
    if paddle.__version__.startswith(("1.", "2.")):
        raise UserError(
            "Export.formats: ONNX export needs Paddle 3, paddle2onnx 2 refuses this one "
            f"({paddle.__version__}): set Export.formats=[paddle]"
        )
    missing = [
        name for name in ("paddle2onnx", "onnx", "onnxruntime") if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise UserError(
            f"Export.formats: ONNX export needs the extra, {', '.join(missing)} not found: "
            "pip install -e '.[export]' in the clone of plsc, or set Export.formats=[paddle]"
        )


def _check_replaceable(out: Path) -> None:
    """Refuse a folder that holds anything but an export, since it is replaced as a whole."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; name a folder for the export")
    strangers = sorted(path.name for path in out.iterdir() if path.name not in _FILES) if out.exists() else []
    if strangers:
        raise UserError(
            f"{out}: holds other files ({strangers[0]}); name a new or empty folder for the export"
        )
