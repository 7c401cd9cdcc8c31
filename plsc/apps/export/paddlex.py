"""Make the folder that PaddleX takes for a model of features: the graph of Paddle Inference, and
inference.yml.

PaddleX reads a picture as RGB, resizes it, multiplies pixels by `scale` / `std` and subtracts `mean` / `std`,
and divides the output by its length. Here it leaves pixels as they are, since the graph normalises them, and
dividing by a length of 1 changes nothing.

Seen in PaddleX 3.7: `inference/models/image_feature/predictor.py` and `face_feature/predictor.py`.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml

from plsc.errors import UserError

# PaddleX makes a model of features under a few names only. This one's may add the mirror image (flip=True).
NAME = "ResNet50_face"
_YML = "inference.yml"


def refuse_other_pictures(preprocessing: Any) -> None:
    """Refuse by UserError a network that PaddleX cannot feed."""
    if preprocessing.channels != "RGB":
        raise UserError(
            "Export.formats: paddlex takes RGB pictures; this network takes "
            f"{preprocessing.channels or preprocessing.dtype} {list(preprocessing.shape)}: leave paddlex out"
        )


def save_paddlex(folder: Path, source: Path, names: dict, preprocessing: Any) -> dict:
    """Copy the graph of Paddle Inference, described by `names`, from `source` to `folder`, and write
    inference.yml.

    Returns the names of this graph.
    """
    for name in names["files"]:
        shutil.copyfile(source / name, folder / name)
    height, width = preprocessing.size
    operations = [
        {"ResizeImage": {"size": [width, height]}},
        {"NormalizeImage": {"scale": 1.0, "mean": [0.0] * 3, "std": [1.0] * 3, "order": ""}},
        {"ToCHWImage": None},
    ]
    content = {
        "Global": {"model_name": NAME},
        "PreProcess": {"transform_ops": operations},
        "PostProcess": {"NormalizeFeatures": None},
    }
    (folder / _YML).write_text(yaml.safe_dump(content, sort_keys=False))
    return {**names, "files": sorted([*names["files"], _YML])}
