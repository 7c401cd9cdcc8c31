"""Plant faults in conversions of trained networks, and see whether the acceptance kit of their exports names
them.

    python -m benchmarks kit output/glyphs output/lfw

The exported ONNX graph embeds the kit's pictures as a faulty program would give them, or is faulty itself;
good conversions must pass. check.py judges, and check.c where there is a C compiler, which must say the same.
Needs the extra `export`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import paddle

from plsc.apps.export import export
from plsc.apps.export.graphs import open_graph
from plsc.apps.export.int8 import Int8Data, Judged, save_int8
from plsc.apps.export.int8_data import int8_data
from plsc.apps.export.kit.pictures import kit_pictures
from plsc.config import Config, load
from plsc.training.resume import build_backbone
from plsc.training.start import open_checkpoint, start
from plsc.training.trained import TrainedNetwork, load_network
from plsc.utils.vectors import unit_embeddings

Embed = Callable[[np.ndarray], np.ndarray]


def add_arguments(part: argparse.ArgumentParser) -> None:
    part.add_argument("runs", nargs="+", help="folders of trainings")


def kit(args: argparse.Namespace) -> dict:
    """Count how many planted faults the acceptance kit of an export names, and how many good conversions
    pass."""
    rows = []
    for run in args.runs:
        cfg = load(run, [])
        start(cfg)
        with tempfile.TemporaryDirectory() as folder:
            subject = Subject(cfg, load_network(open_checkpoint(cfg), cfg), Path(folder))
            for name, expected, verdict in judge(subject):
                rows.append({"run": str(run), "conversion": name, "expected": expected, "verdict": verdict})
    return {"conversions": rows}


@dataclass(frozen=True)
class Subject:
    """A trained network, and a folder for its exports."""

    cfg: Config
    network: TrainedNetwork
    folder: Path

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What the export says of itself."""
        return self.export("export", self.network.backbone, ["paddle", "onnx", "onnx_int8"])

    def export(self, name: str, model: paddle.nn.Layer, formats: list[str]) -> dict[str, Any]:
        """Export `model` with its kit to a new folder. What 8 bits cost does not matter."""
        return export(
            model,
            self.folder / name,
            preprocessing=self.network.preprocessing,
            formats=formats,
            threshold=self.network.thresholds.threshold,
            flip=self.flip,
            int8=lambda: replace(int8_data(self.cfg, self.network.checkpoint), judge=_content),
            kit=kit_pictures(self.cfg, self.network.checkpoint),
        )

    @property
    def flip(self) -> bool:
        return self.network.thresholds.flip

    @cached_property
    def samples(self) -> np.ndarray:
        """The kit's pictures, float32 [N, C, H, W]."""
        return np.load(self.folder / "export" / "kit" / "samples.npy").astype(np.float32)

    def graph(self, kind: str) -> Embed:
        return open_graph(Path(self.facts["folder"]), self.facts["files"][kind])

    def embed(self, samples: np.ndarray, run: Embed | None = None) -> np.ndarray:
        """Embed as a program must, by the ONNX graph or another one."""
        one_by_one = [samples[n : n + 16] for n in range(0, len(samples), 16)]
        run = run or self.graph("onnx")
        return np.concatenate(
            [unit_embeddings(run, part.astype(np.float32), self.flip) for part in one_by_one]
        )


def judge(subject: Subject) -> Iterator[tuple[str, str, str]]:
    """Yield what was done to a conversion, how the right verdict begins, and the verdict."""
    kit_folder = Path(subject.facts["folder"]) / "kit"
    for name, rows in good(subject):
        yield name, "pass", verdict(kit_folder, rows)
    without = subject.export("without", subject.network.backbone, ["paddle"])
    rows = subject.embed(subject.samples, subject.graph("onnx_int8"))
    yield "8 bits, of an export without 8 bits", "pass", verdict(Path(without["folder"]) / "kit", rows)
    for name, expected, rows in planted(subject):
        yield name, f"fault: {expected}", verdict(kit_folder, rows)
    yield "float16, too large numbers", "fault: float16 overflow", _overflow(subject)


def verdict(folder: Path, rows: np.ndarray) -> str:
    """Have check.py judge embeddings by the kit in `folder`; the last line. Where check.c can be compiled it
    must print the same."""
    mine = folder / "mine.npy"
    np.save(mine, np.ascontiguousarray(rows, np.float32))
    python = _printed([sys.executable, "check.py", "mine.npy"], folder)
    if compiler := shutil.which("cc"):
        if not (folder / "check").exists():
            subprocess.run([compiler, "-std=c99", "check.c", "-o", "check", "-lm"], cwd=folder, check=True)
        assert (c := _printed(["./check", "mine.npy"], folder)) == python, (c, python)
    return python.splitlines()[-1]


def _printed(command: list[str], folder: Path) -> str:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


def good(subject: Subject) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the embeddings of right conversions."""
    samples = subject.samples
    yield "ONNX", subject.embed(samples)
    yield "Paddle Inference", subject.embed(samples, subject.graph("paddle"))
    yield "8 bits", subject.embed(samples, subject.graph("onnx_int8"))
    yield (
        "float16",
        subject.embed(samples, _in_float16(Path(subject.facts["folder"]) / "model.onnx", subject.folder)),
    )


def planted(subject: Subject) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield what was done wrong, how its verdict begins, and the embeddings."""
    x, embed = subject.samples, subject.embed
    preprocessing, backbone = subject.network.preprocessing, subject.network.backbone
    mean, scale = preprocessing.mean, preprocessing.scale
    if x.shape[1] == 3:
        yield "BGR", "colour order", embed(x[:, ::-1])
        yield "[H, W, C] read as [C, H, W]", "layout", embed(x.transpose(0, 2, 3, 1).reshape(x.shape))
    else:
        yield "rows for columns", "layout", embed(x.swapaxes(2, 3).reshape(x.shape))
    yield "mean subtracted before the graph", "mean:", embed(x - mean)
    yield "mean not subtracted", "mean:", embed(x + mean)
    yield "divided by 57.5", "scale", embed((x - mean) / (57.5 * scale) + mean)
    yield "divided by 255 before the graph", "mean and scale", embed(x / 255)
    yield "middle 0.85 cut out", "crop", embed(_middle(x, 0.85, 0.85))
    yield "0.8 of the height stretched", "resize", embed(_middle(x, 0.8, 1))
    yield "signed bytes", "bytes", embed((x + 128) % 256)
    if subject.flip:
        flipped = [subject.graph("onnx")(x[n : n + 16]) for n in range(0, len(x), 16)]
        yield "without the mirror image", "mirror", np.concatenate(flipped)
    else:
        yield "mirrored", "mirror", embed(x[..., ::-1])
    yield "rows in another order", "rows permuted", np.random.default_rng(0).permutation(embed(x))
    backbone.eval()
    pictures = [x[n : n + 16] for n in range(0, len(x), 16)]
    raw = [_run(backbone, preprocessing(part)) for part in pictures]
    if subject.flip:
        raw = [one + _run(backbone, preprocessing(part[..., ::-1])) for one, part in zip(raw, pictures)]
    yield "lengths left as they are", "no normalisation", np.concatenate(raw)
    fresh = build_backbone(subject.cfg.Model, subject.cfg.Global.seed + 1, preprocessing.shape)
    fresh.eval()
    yield "random weights", "weights not loaded", embed(x, lambda part: _run(fresh, preprocessing(part)))
    yield "8 bits by dark pictures", "int8 too coarse", embed(x, _coarse(subject, x))
    if any(hasattr(layer, "_variance") for layer in backbone.sublayers()):
        yield "BatchNorm's variances lost", "BatchNorm", embed(x, _without_variances(subject))


def _middle(pixels: np.ndarray, rows: float, columns: float) -> np.ndarray:
    """Enlarge the middle of pictures, of these shares of height and width, to the whole."""
    height, width = pixels.shape[2:]
    top, left = round(height * (1 - rows) / 2), round(width * (1 - columns) / 2)
    cut = pixels[:, :, top : height - top, left : width - left].reshape(
        -1, height - 2 * top, width - 2 * left
    )
    return np.stack([cv2.resize(plane, (width, height)) for plane in cut]).reshape(pixels.shape)


def _run(model: paddle.nn.Layer, inputs: np.ndarray) -> np.ndarray:
    with paddle.no_grad():
        return model(paddle.to_tensor(inputs)).numpy()


def _in_float16(source: Path, folder: Path) -> Embed:
    """Round what each node of an ONNX graph gives, weights too, to float16: sums have more digits, as on GPUs
    and NPUs."""
    import onnx
    from onnx import TensorProto, helper

    model = onnx.shape_inference.infer_shapes(onnx.load(source))
    floats = {value.name for value in (*model.graph.value_info, *model.graph.output) if _is_float(value)}
    nodes = []
    for node in model.graph.node:
        nodes.append(node)
        for place, name in enumerate(node.output):
            if name in floats:
                node.output[place], half = f"{name} in float32", f"{name} in float16"
                nodes.append(helper.make_node("Cast", [node.output[place]], [half], to=TensorProto.FLOAT16))
                nodes.append(helper.make_node("Cast", [half], [name], to=TensorProto.FLOAT))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, folder / "float16.onnx")
    return open_graph(folder, {"model": "float16.onnx", "input": "image", "output": "embedding"})


def _is_float(value: Any) -> bool:
    return value.type.tensor_type.elem_type == 1  # TensorProto.FLOAT


def _content(embed: Embed) -> Judged:
    """Accept any accuracy."""
    return Judged(1.0, None)


def _coarse(subject: Subject, pictures: np.ndarray) -> Embed:
    """Quantize the ONNX graph by pictures of a quarter of the brightness, whose ranges cut the others'
    off."""
    folder = subject.folder / "coarse"
    folder.mkdir()
    everything = Int8Data((pictures / 4).astype(np.uint8), _content, "none", False, 0)
    source = Path(subject.facts["folder"])
    names, _ = save_int8(
        folder, source, subject.facts["files"]["onnx"], subject.network.preprocessing, everything
    )
    return open_graph(folder, names)


def _without_variances(subject: Subject) -> Embed:
    """Put 1 for the variances of the ONNX graph's batch norms."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(Path(subject.facts["folder"]) / "model.onnx")
    lost = {node.input[4] for node in model.graph.node if node.op_type == "BatchNormalization"}
    same = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Identity"}
    lost = {same.get(name, name) for name in lost}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.output[0] in lost:
            value = numpy_helper.to_array(node.attribute[0].t)
            node.attribute[0].t.CopyFrom(numpy_helper.from_array(np.ones_like(value)))
    onnx.save(model, subject.folder / "lost.onnx")
    return open_graph(subject.folder, {"model": "lost.onnx", "input": "image", "output": "embedding"})


class _Louder(paddle.nn.Layer):
    """Gives embeddings so long that their squares are beyond float16."""

    def __init__(self, model: paddle.nn.Layer):
        super().__init__()
        self.model = model

    def forward(self, images):
        return self.model(images) * 1000.0


def _overflow(subject: Subject) -> str:
    """Export a network of large numbers, and judge it in float16."""
    folder = Path(subject.export("louder", _Louder(subject.network.backbone), ["onnx"])["folder"])
    return verdict(
        folder / "kit", subject.embed(subject.samples, _in_float16(folder / "model.onnx", subject.folder))
    )


def show(result: dict) -> str:
    lines, right = [], {"pass": [], "fault": []}
    for row in result["conversions"]:
        is_right = row["verdict"].startswith(row["expected"])
        right[row["expected"].split(":")[0]].append(is_right)
        mark = "  " if is_right else "! "
        lines.append(f"{mark}{row['run']}: {row['conversion']} -> {row['verdict']}")
    lines.append(f"faults named: {sum(right['fault'])} of {len(right['fault'])}")
    lines.append(f"good conversions that pass: {sum(right['pass'])} of {len(right['pass'])}")
    return "\n".join(lines)
