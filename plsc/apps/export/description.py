"""Describe an export: preprocessing.json for programs, README.txt for people."""

from typing import Any

import paddle

from plsc.utils.version import __version__

_VALUES = "raw pixels 0..255; normalisation is inside the graph"
_RESIZE = "to the size, whatever the aspect ratio: cv2.INTER_AREA to shrink, cv2.INTER_LINEAR to enlarge"
_READS = {  # channel order -> cv2's flag and the code to [C, H, W] with which the example reads a picture
    "RGB": ("cv2.IMREAD_COLOR", "[..., ::-1].transpose(2, 0, 1)"),
    "BGR": ("cv2.IMREAD_COLOR", ".transpose(2, 0, 1)"),
    "grey": ("cv2.IMREAD_GRAYSCALE", "[None]"),
}


def describe(
    preprocessing: Any, embedding_size: int, flip: bool, threshold: float | None, network: str | None
) -> dict:
    """Return preprocessing.json's content except "files" and "checks".

    Args:
        preprocessing: the network's plsc.utils.preprocessing.Preprocessing.
        embedding_size: numbers per embedding.
        flip: whether the graph adds the mirror image's embedding.
        threshold: cosine above which two pictures show one class. None if not known.
        network: the network's identity. None if not known.
    """
    shape = list(preprocessing.shape)
    # The steps that remain outside the graph. With mean and scale among them, a reader would normalise twice.
    left = {"size": shape[1:], "channels": preprocessing.channels, "resize": _RESIZE}
    if preprocessing.aligned is not None:
        left["aligned"] = preprocessing.aligned
    return {
        "plsc": __version__,
        "paddle": paddle.__version__,
        "network": network,
        "embedding_size": embedding_size,
        "input": {"dtype": "float32", "shape": ["batch", *shape], "values": _VALUES},
        "output": {"dtype": "float32", "shape": ["batch", embedding_size], "normalised": True},
        "preprocessing": left,
        "inside_the_graph": {
            "normalisation": "(image - mean) * scale",
            "mean": preprocessing.mean,
            "scale": preprocessing.scale,
            "mirror": flip,
            "darkest": preprocessing.darkest,
        },
        "threshold": threshold,
    }


def readme(facts: dict) -> str:
    """Return README.txt's text, which describes this network and these files to people.

    facts: preprocessing.json's content.
    """
    _, *shape = facts["input"]["shape"]
    left, files = facts["preprocessing"], facts["files"]
    size = f"{shape[1]} x {shape[2]}"
    lines = [
        "A network that gives embeddings, written by plsc export. preprocessing.json has all numbers.",
        "",
        f"Input: float32 [batch, {', '.join(map(str, shape))}], raw pixels 0 to 255, {left['channels']}.",
        f"Resize a picture to {size} (height x width), {_RESIZE.partition(', ')[2]}.",
        "Do not subtract a mean and do not divide by 255 or 127.5: the graph normalises the pixels.",
    ]
    if (darkest := facts["inside_the_graph"]["darkest"]) is not None:
        lines.append(
            f"A picture without a pixel above {darkest:g} is black, or normalised already. Its embedding is "
            "zero."
        )
    if left.get("aligned"):
        lines.append("The pictures must be faces with their landmarks at ArcFace's places (plsc align).")
    mirror = (
        "The graph itself adds the mirror image's embedding. " if facts["inside_the_graph"]["mirror"] else ""
    )
    threshold = facts["threshold"]
    lines += [
        "",
        f"Output: float32 [batch, {facts['embedding_size']}], unit rows (Euclidean length 1).",
        "The dot product of two rows is their cosine.",
        f"{mirror}Do not mirror pictures.",
        "The cosine above which two pictures show one class was not measured."
        if threshold is None
        else f"Two pictures with a cosine above {threshold:.4f} show one class.",
    ]
    reader = _READS.get(left["channels"])
    if "onnx" in files and reader:
        flag, to_chw = reader
        lines += [
            "",
            "ONNX Runtime, for two pictures:",
            "",
            "    import cv2, numpy as np, onnxruntime",
            f'    session = onnxruntime.InferenceSession("{files["onnx"]["model"]}")',
            "    def read(name):",
            f"        picture = cv2.imread(name, {flag})",
            f"        shrinks = picture.shape[0] > {shape[1]} or picture.shape[1] > {shape[2]}",
            "        how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR",
            f"        return cv2.resize(picture, ({shape[2]}, {shape[1]}), interpolation=how){to_chw}",
            '    images = np.stack([read("a.png"), read("b.png")]).astype(np.float32)',
            '    a, b = session.run(None, {"image": images})[0]',
            '    print("cosine", a @ b)',
        ]
    others = {
        "paddle": "Paddle Inference: inference.Config({model!r}, {params!r}), and create_predictor.",
        "insightface": "insightface: model_zoo.get_model({model!r}).get_feat(picture), as cv2 reads it.",
        "paddlex": 'PaddleX: paddlex.create_model("ResNet50_face", model_dir="paddlex").predict(picture).',
    }
    lines += ["", *(text.format(**files[kind]) for kind, text in others.items() if kind in files)]
    lines.append("docs/export.md of plsc explains each, and how to make an 8-bit graph.")
    return "\n".join(lines) + "\n"
