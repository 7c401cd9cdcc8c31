"""Make model.onnx one that the package `insightface` takes for a recognition model, and that gives our
embeddings there.

`insightface.model_zoo.get_model` makes an ArcFaceONNX of a square input whose side is a multiple of 16 from
112 on. That normalises pixels by mean and deviation 127.5, except where two of the first eight nodes have
names that begin with Sub and Mul: these graphs are taken to normalise by themselves, as ours do. It hands RGB
to the graph, and takes the output as it is.

Seen in insightface 2.1: `model_zoo/arcface_onnx.py`, `ModelRouter` in `model_zoo/model_zoo.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plsc.apps.export.graphs import MODEL
from plsc.errors import UserError

_SIDES = (
    112,
    128,
)  # its alignment (utils/face_align.py) makes multiples of these; 192, which is neither, is a landmark model's


def refuse_other_pictures(preprocessing: Any) -> None:
    """Refuse by UserError a network that insightface cannot feed."""
    fits = preprocessing.channels == "RGB" and preprocessing.shape[1] == preprocessing.shape[2]
    if not fits or not any(preprocessing.shape[1] % side == 0 for side in _SIDES):
        raise UserError(
            "Export.formats: insightface takes RGB pictures of 112 x 112 or 128 x 128 or a multiple of these; this network takes "
            f"{preprocessing.channels or preprocessing.dtype} {list(preprocessing.shape)}: leave insightface out"
        )


def save_insightface(folder: Path, source: Path, names: dict) -> dict:
    """Write the ONNX graph in `source`, described by `names`, to `folder` with the two nodes that insightface
    looks for.

    They compute image - 0 and then * 1, which ONNX Runtime removes: the nodes that normalise are others from
    network to network. Returns the names of this graph.
    """
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load(source / names["model"])
    graph, image = model.graph, names["input"]
    for node in graph.node:
        node.input[:] = ["image * 1" if name == image else name for name in node.input]
    for name, value in (("zero", 0), ("one", 1)):
        graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), f"insightface.{name}"))
    graph.node.insert(0, helper.make_node("Sub", [image, "insightface.zero"], ["image - 0"], "Sub_nothing"))
    graph.node.insert(
        1, helper.make_node("Mul", ["image - 0", "insightface.one"], ["image * 1"], "Mul_by_one")
    )
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(folder / MODEL))
    return {**names, "files": [MODEL], "model": MODEL}
