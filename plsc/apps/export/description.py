"""Describe an export: preprocessing.json for programs, README.txt for people."""

from typing import Any

import paddle

from plsc.utils.preprocessing import DARKEST
from plsc.utils.version import __version__

_VALUES = "raw pixels 0..255; normalisation is inside the graph"
_RESIZE = "to the size, whatever the aspect ratio: cv2.INTER_AREA to shrink, cv2.INTER_LINEAR to enlarge"
README = """\
A network that gives embeddings, written by plsc export. preprocessing.json has all numbers.

Input: float32 [batch, ...], raw pixels 0 to 255 in the size and channel order that preprocessing.json names.
Do not subtract a mean and do not divide by 255 or 127.5: the graph does what has to be done.
A picture without a pixel above 3 was normalised before, or is black: its embedding is all zeros.
Where "aligned" is true, the network wants faces with their landmarks at ArcFace's places (plsc align).

Output: float32 [batch, size] of length 1: the dot product of two embeddings is their cosine.
Two pictures with a cosine above "threshold" are of the same class; null: not known.
Do not mirror pictures: where "mirror" is true, the graph adds the embedding of the mirror image itself.

ONNX Runtime, for two pictures in RGB:

    import cv2, numpy as np, onnxruntime
    session = onnxruntime.InferenceSession("model.onnx")
    images = [cv2.imread(name)[..., ::-1].transpose(2, 0, 1) for name in ("a.png", "b.png")]
    a, b = session.run(None, {"image": np.stack(images).astype(np.float32)})[0]
    print("cosine", a @ b)

Paddle Inference: inference.Config of the program and the parameters, as in "files", and create_predictor.
insightface: insightface.model_zoo.get_model("insightface/model.onnx").get_feat(picture), as cv2 reads it.
PaddleX: paddlex.create_model("ResNet50_face", model_dir="paddlex").predict(picture).
docs/export.md of plsc says more of each, and how to make a graph of 8 bits.
"""


def describe(
    preprocessing: Any, embedding_size: int, flip: bool, threshold: float | None, network: str | None
) -> dict:
    """Make the content of preprocessing.json except what is known of the files."""
    shape = list(preprocessing.shape)
    # What is left to do outside. Mean and scale are not among it: a reader would normalise once more.
    left = {"size": shape[1:], "channels": preprocessing.channels, "resize": _RESIZE}
    if preprocessing.aligned is not None:
        left["aligned"] = preprocessing.aligned
    return {
        "plsc": __version__,
        "paddle": paddle.__version__,
        "network": network,
        "embedding_size": embedding_size,
        "input": {"dtype": "float32", "shape": ["batch", *shape], "values": _VALUES},
        "output": {"dtype": "float32", "shape": ["batch", embedding_size], "length": 1},
        "preprocessing": left,
        "inside_the_graph": {
            "normalisation": "(image - mean) * scale",
            "mean": preprocessing.mean,
            "scale": preprocessing.scale,
            "mirror": flip,
            "not_raw_pixels": f"an image without a pixel above {DARKEST:g} gets an embedding of zeros",
        },
        "threshold": threshold,
    }
