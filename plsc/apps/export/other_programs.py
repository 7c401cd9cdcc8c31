"""Write the folders that the packages `insightface` and PaddleX load as a network for faces.

`insightface.model_zoo.get_model` makes an ArcFaceONNX if the graph's input is square and its side is a
multiple of 16 and at least 112. An ArcFaceONNX normalises pixels with mean and deviation 127.5, except if the
first eight nodes contain one whose name begins with Sub and one whose name begins with Mul. It assumes that
such a graph normalises pixels itself, as plsc's graphs do.

PaddleX reads a picture as RGB and resizes it. It multiplies pixels by `scale` / `std`, subtracts `mean` /
`std`, and divides the output by its length. The exported inference.yml makes it leave the pixels unchanged.

Sources: insightface 2.1 (model_zoo/arcface_onnx.py, ModelRouter) and PaddleX 3.7
(image_feature/predictor.py).
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from plsc.apps.export.onnx_graph import MODEL
from plsc.errors import UserError

# insightface aligns faces to multiples of these sides. A side of 192 means a landmark model to insightface.
_SIDES = (112, 128)
# PaddleX makes a model for features under a few names only.
_NAME = "ResNet50_face"
_YML = "inference.yml"


def refuse_other_pictures(formats: Sequence[str], preprocessing: Any) -> None:
    """Raise UserError if a format cannot be used with the network's pictures.

    Args:
        formats: formats as in Export.formats.
        preprocessing: the network's plsc.utils.preprocessing.Preprocessing.
    """
    height, width = preprocessing.shape[1:]
    fits = {"insightface": height == width and any(height % side == 0 for side in _SIDES), "paddlex": True}
    for kind in fits.keys() & set(formats):
        if preprocessing.channels != "RGB" or not fits[kind]:
            sizes = " of 112 x 112 or 128 x 128 or a multiple of these" if kind == "insightface" else ""
            given = f"{preprocessing.channels} {list(preprocessing.shape)}"
            raise UserError(
                f"{kind} takes RGB pictures{sizes}; this network takes {given}: remove {kind}",
                key="Export.formats",
            )


def save_insightface(folder: Path, names: dict) -> dict:
    """Write the ONNX graph with the two nodes that insightface looks for to the subfolder insightface.

    The nodes compute image - 0 and then * 1. ONNX Runtime removes them.

    Args:
        folder: export folder.
        names: the ONNX graph's names.

    Returns the new graph's names.
    """
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load(folder / names["model"])
    graph = model.graph
    image = names["input"]
    for node in graph.node:
        node.input[:] = ["image * 1" if name == image else name for name in node.input]
    for name, value in (("zero", 0), ("one", 1)):
        graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), f"insightface.{name}"))
    subtract = helper.make_node("Sub", [image, "insightface.zero"], ["image - 0"], "Sub_nothing")
    multiply = helper.make_node("Mul", ["image - 0", "insightface.one"], ["image * 1"], "Mul_by_one")
    graph.node.insert(0, subtract)
    graph.node.insert(1, multiply)
    onnx.checker.check_model(model, full_check=True)
    path = f"insightface/{MODEL}"
    (folder / path).parent.mkdir()
    onnx.save(model, str(folder / path))
    return {**names, "files": [path], "model": path}


def save_paddlex(folder: Path, names: dict, preprocessing: Any) -> dict:
    """Copy the graph for Paddle Inference to the subfolder paddlex, and write inference.yml.

    Args:
        folder: export folder.
        names: the names in the graph for Paddle Inference.
        preprocessing: the network's plsc.utils.preprocessing.Preprocessing.

    Returns the new graph's names.
    """
    (folder / "paddlex").mkdir()
    for name in names["files"]:
        shutil.copyfile(folder / name, folder / "paddlex" / name)
    height, width = preprocessing.shape[1:]
    operations = [
        {"ResizeImage": {"size": [width, height]}},
        {"NormalizeImage": {"scale": 1.0, "mean": [0.0] * 3, "std": [1.0] * 3, "order": ""}},
        {"ToCHWImage": None},
    ]
    content = {
        "Global": {"model_name": _NAME},
        "PreProcess": {"transform_ops": operations},
        "PostProcess": {"NormalizeFeatures": None},
    }
    (folder / "paddlex" / _YML).write_text(yaml.safe_dump(content, sort_keys=False))
    inside = {key: f"paddlex/{names[key]}" for key in ("model", "params")}
    return {**names, **inside, "files": [f"paddlex/{name}" for name in (*names["files"], _YML)]}
