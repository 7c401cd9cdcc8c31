"""Make an ONNX graph that computes in 8 bits, and refuse it where that costs accuracy.

Convolutions, but depthwise ones, and matrix products take and give 8 bits, whose ranges are those seen on
pictures of the training set. What normalises pixels and embeddings stays float32: it takes no time, and a
wrong scale there would be in every number.

The weights have 7 bits. With 8 the sums overflow on processors without VNNI, and the accuracy measured here
would not be theirs. ONNX Runtime 1.32's quantization (QDQ, per channel) does the work.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plsc.apps.export.card import threshold_of
from plsc.apps.export.graphs import MODEL, errors_as_user_error, open_graph
from plsc.errors import UserError, shown
from plsc.utils.calibration import Calibration
from plsc.utils.files import sha256_of
from plsc.utils.logging import get_logger

LOSS = 0.005  # of the accuracy, at most
_BATCH = 32  # pictures in one pass

Embed = Callable[[np.ndarray], np.ndarray]
"""samples [B, *shape] -> embeddings [B, D]"""


@dataclass(frozen=True)
class Judged:
    """What the main evaluation set says of a network: its main number, and what a cosine means, None where it
    does not tell."""

    accuracy: float
    threshold: float | None
    calibration: Calibration | None = None


@dataclass(frozen=True)
class Int8Data:
    """What 8 bits need of the data sets.

    pictures: samples [n, *shape] of the training set. judge: evaluates embeddings on the main set. title: of
    that set. flip: whether its threshold is of images and their mirror images together. step: of the
    checkpoint.
    """

    pictures: np.ndarray
    judge: Callable[[Embed], Judged]
    title: str
    flip: bool
    step: int


def save_int8(
    folder: Path, source: Path, names: dict, preprocessing: Any, data: Int8Data
) -> tuple[dict, dict]:
    """Write the float graph in `source`, described by `names`, to `folder` in 8 bits.

    Returns the names of this graph, and what preprocessing.json says otherwise of it than of the float graph.
    Raises: UserError if it is less accurate than the float graph by more than LOSS.
    """
    with errors_as_user_error("Export.formats: onnx_int8: ONNX Runtime cannot quantize this backbone"):
        _quantize(source / names["model"], folder / MODEL, names["input"], data.pictures)
    names = {**names, "files": [MODEL], "model": MODEL}
    before = data.judge(_embed(source, names))
    after = data.judge(_embed(folder, names))
    shares = f"{100 * after.accuracy:.2f} % on {shown(data.title)}, in float32 {100 * before.accuracy:.2f} %"
    if not before.accuracy - after.accuracy <= LOSS:
        raise UserError(
            f"Export.formats: onnx_int8: accuracy {shares}; more than {100 * LOSS:g} points are lost: leave onnx_int8 out, or try more "
            f"Export.int8_pictures (here {len(data.pictures):,}) or a larger main set"
        )
    get_logger().info(f"onnx_int8: accuracy {shares}")
    facts = {
        # Its embeddings are not to be compared with the float network's: galleries know a network by this.
        "network": sha256_of(folder / MODEL),
        "threshold": after.threshold,
        "threshold_of": threshold_of(preprocessing, data.flip),
        "flip": data.flip,
        "threshold_set": data.title,
        "threshold_step": data.step,
        "calibration": after.calibration.to_json() if after.calibration else None,
        "int8": {
            "pictures": len(data.pictures),
            "set": data.title,
            "accuracy": after.accuracy,
            "accuracy_float32": before.accuracy,
        },
    }
    return names, facts


def _embed(folder: Path, names: dict) -> Embed:
    run = open_graph(folder, names)
    return lambda samples: run(samples.astype(np.float32))


def _quantize(source: Path, target: Path, image: str, pictures: np.ndarray) -> None:
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quant_pre_process,
        quantize_static,
    )

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.starts = iter(range(0, len(pictures), _BATCH))

        def get_next(self) -> dict | None:
            start = next(self.starts, None)
            return None if start is None else {image: pictures[start : start + _BATCH].astype(np.float32)}

    folded = target.with_name("folded.onnx")  # batch norms are part of the convolutions there
    with _quiet():
        quant_pre_process(source, folded, skip_symbolic_shape=True)
        quantize_static(
            folded,
            target,
            Reader(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["Conv", "Gemm", "MatMul"],
            per_channel=True,
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=_depthwise(folded),
            calibrate_method=CalibrationMethod.MinMax,
        )
    folded.unlink()


def _depthwise(file: Path) -> list[str]:
    """List the convolutions of one channel each, which ONNX Runtime computes more slowly in 8 bits than in
    float32."""
    import onnx

    nodes = onnx.load(file).graph.node
    return [node.name for node in nodes for part in node.attribute if part.name == "group" and part.i > 1]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep ONNX Runtime's advice for its own users out of our log."""
    import onnxruntime

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    onnxruntime.set_default_logger_severity(3)
    try:
        yield
    finally:
        logging.disable(before)
        onnxruntime.set_default_logger_severity(2)
