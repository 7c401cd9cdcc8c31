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

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paddle import nn

from plsc.backbones.export.card import make_card
from plsc.backbones.export.graphs import check, save_onnx, save_paddle
from plsc.backbones.export.readme import readme_text
from plsc.backbones.export.reference import example, on_cpu, untouched
from plsc.backbones.export.requirements import check_packages, check_replaceable
from plsc.backbones.export.self_check import write_self_check
from plsc.utils.atomic_write import atomic_write


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
    network: str | None = None,
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
        network: identity of the weights, see plsc.checkpoint.saved.Checkpoint.network.

    Returns: what preprocessing.json has (see make_card), and "folder".
    Raises: UserError (missing packages, before anything is written; a model that does not export truly).
    """
    assert formats and set(formats) <= {"paddle", "onnx"}
    out = Path(os.path.abspath(out_dir))
    check_packages(formats)
    check_replaceable(out)
    with atomic_write(out) as tmp:
        tmp.mkdir(parents=True)
        with on_cpu(model), untouched(model):
            model.eval()
            examples = [example(model, preprocessing, batch) for batch in check_batches]
            files = {"paddle": save_paddle(model, preprocessing, tmp)}
            self_check = write_self_check(tmp, model, preprocessing)
        if "onnx" in formats:
            files["onnx"] = save_onnx(tmp, files["paddle"], opset)
        checks = [check(tmp, kind, files[kind], *example) for kind in formats for example in examples]
        if "paddle" not in formats:
            for name in files.pop("paddle")["files"]:
                (tmp / name).unlink()
        card = make_card(preprocessing, examples[0][1].shape[1], threshold, flip)
        card.update(threshold_set=threshold_set, threshold_step=threshold_step, network=network)
        card.update(files=files, checks=checks)
        (tmp / "README.txt").write_text(readme_text(card, self_check))
        card["self_check"] = self_check
        (tmp / "preprocessing.json").write_text(json.dumps(card, indent=1) + "\n")
        if out.exists():
            shutil.rmtree(out)
    return {**card, "folder": str(out)}
