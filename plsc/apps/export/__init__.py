"""Export the backbone to files that run without plsc, checked against the training graph.

    image      float32 [batch, C, H, W]: raw pixels 0..255, of the preprocessing's size and channel order
    sample     float32 [batch, ...]: instead, of a data set whose samples are no images
    embedding  float32 [batch, D]: of length 1, so that a dot product is the cosine (zeros stay zeros)

Normalising the input and the embedding is part of the graph. What is left to do outside, and the cosine above
which two samples are of the same class, stands in preprocessing.json, and README.txt says how. The folder
kit, see plsc.apps.export.kit, has samples with their embeddings, and programs that say whether another
runtime or one's own code gives these.

The graphs for Paddle Inference and ONNX Runtime lie in the folder itself; other formats have folders of their
names in it, with all of these files but the kit, so that each can be taken away alone.

Pixels that were normalised already would give embeddings that are all alike, and every comparison would be
accepted. So an image without a pixel above 3 gets an embedding of zeros, which resembles nothing: a mistake
is seen at once and accepts nobody. It takes one maximum. A truly black picture has nothing to recognise
either.

Try it: `pytest tests/apps/export/test_export.py`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paddle import nn

from plsc.apps.export.card import make_card
from plsc.apps.export.description import Description
from plsc.apps.export.graphs import check, open_graph, save_onnx, save_paddle
from plsc.apps.export.insightface import save_insightface
from plsc.apps.export.int8 import Int8Data, save_int8
from plsc.apps.export.kit import FOLDER as KIT
from plsc.apps.export.kit import KitPictures, make_kit
from plsc.apps.export.paddlex import save_paddlex
from plsc.apps.export.reference import example, on_cpu, untouched
from plsc.apps.export.requirements import NEED_ONNX, check_packages, check_pictures, check_replaceable
from plsc.utils.atomic_write import atomic_write, remove
from plsc.utils.calibration import Calibration


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
    calibration: Calibration | None = None,
    network: str | None = None,
    int8: Callable[[], Int8Data] | None = None,
    kit: KitPictures | None = None,
    check_batches: Sequence[int] = (1, 8),
) -> dict:
    """Write `model` (prepared samples [B, *shape] -> embeddings [B, D]) to the folder `out_dir`, for any B.

    The folder appears, or replaces that of an earlier export, when all is written and every format agrees
    with the training graph in eval mode within TOLERANCE, both on the CPU. `model`, without data parallel's
    wrapper, stays as and where it is.

    Args:
        preprocessing: of the data set, a plsc.data.preprocessing.Preprocessing.
        formats: "paddle" (inference.json or .pdmodel, and .pdiparams), "onnx" (model.onnx), and in folders of these names
            "onnx_int8", "insightface", "paddlex".
        threshold: cosine above which two images are of the same class; None = not known.
        flip: whether it belongs to the sum of an image's embedding and its mirror image's; the graph makes one of them.
        threshold_set, threshold_step: the set it was computed on, and at which step.
        calibration: what a cosine means; None = not known.
        network: identity of the weights, see plsc.checkpoint.saved.Checkpoint.network.
        int8: makes what "onnx_int8" needs; called for that format only.
        kit: samples for the acceptance kit; None: there is no kit.

    Returns: what preprocessing.json has (see make_card), and "folder".
    Raises: UserError (missing packages, or samples that a format does not take, before anything is written; a
    model that does
        not export truly, or is less accurate in 8 bits).
    """
    out = Path(os.path.realpath(out_dir))  # a link stays one
    check_packages(formats)
    check_pictures(formats, preprocessing)
    check_replaceable(out)
    int8_data = int8() if "onnx_int8" in formats else None
    with _replacing(out) as tmp:
        tmp.mkdir(parents=True)
        with on_cpu(model), untouched(model):
            model.eval()
            examples = [example(model, preprocessing, batch) for batch in check_batches]
            checker = make_kit(model, preprocessing, kit, flip) if kit else None
            graphs = {"paddle": save_paddle(model, preprocessing, tmp)}
        if not NEED_ONNX.isdisjoint(formats):
            graphs["onnx"] = save_onnx(tmp, graphs["paddle"], opset)
        card = make_card(preprocessing, examples[0][1].shape[1], threshold, flip)
        card.update(threshold_set=threshold_set, threshold_step=threshold_step, network=network)
        card["calibration"] = calibration.to_json() if calibration else None
        card["kit"] = {"folder": KIT, "samples": len(kit.samples), "of": kit.title} if kit else None
        about = Description(card, preprocessing)
        files, checks = {}, []
        for kind in formats:
            if kind in graphs:
                files[kind] = graphs[kind]
                checks += [check(tmp, kind, graphs[kind], *given) for given in examples]
            else:
                files[kind], compared = _save_in_folder(tmp / kind, graphs, about, examples, int8_data)
                checks += compared
        for kind in graphs.keys() - set(formats):
            for name in graphs[kind]["files"]:
                (tmp / name).unlink()
        if checker:
            in_8_bits = open_graph(tmp, files["onnx_int8"]) if "onnx_int8" in files else None
            checker.write(tmp / KIT, threshold, threshold_set or "the main evaluation set", in_8_bits)
        card = about.write(tmp, files, checks)
    return {**card, "folder": str(out)}


@contextlib.contextmanager
def _replacing(out: Path) -> Iterator[Path]:
    """Yield a name for a new folder, and give it the place of the export at `out` when the block ends well.

    The earlier export stays whole, under another name at most, until the new one is there. What a killed
    export left under that name is put back or replaced.
    """
    old = out.with_name(f"{out.name}.tmp.old")
    try:
        with atomic_write(out) as tmp:
            yield tmp
            if out.exists():
                remove(old)
                os.replace(out, old)
    finally:
        if old.exists() and not out.exists():
            os.replace(old, out)
    with contextlib.suppress(OSError):  # the new export is there; the next one removes the rest
        remove(old)


def _save_in_folder(
    folder: Path, graphs: dict[str, dict], about: Description, examples: list, int8: Int8Data | None
) -> tuple[dict, list[dict]]:
    """Write the format that the new `folder` is called after, with all that describes it, from `graphs`,
    which lie beside.

    Returns the names of its files as seen from beside, and the comparisons with the training graph.
    """
    kind, source, checks, others = folder.name, folder.parent, [], {}
    if about.card["kit"]:
        about = replace(about, card={**about.card, "kit": {**about.card["kit"], "folder": f"../{KIT}"}})
    folder.mkdir()
    if kind == "onnx_int8":
        assert int8 is not None
        names, others = save_int8(folder, source, graphs["onnx"], about.preprocessing, int8)
        about = replace(about, card={**about.card, **others})
        about.write(folder, {"onnx": names}, [])  # to who takes it away it is an ONNX graph like another
    else:
        if kind == "insightface":
            names = save_insightface(folder, source, graphs["onnx"])
        else:
            names = save_paddlex(folder, source, graphs["paddle"], about.preprocessing)
        checks = [check(folder, kind, names, *given) for given in examples]
        about.write(folder, {kind: names}, checks)
    inside = {key: f"{kind}/{names[key]}" for key in ("model", "params") if key in names}
    inside["files"] = sorted(f"{kind}/{path.name}" for path in folder.iterdir())
    return {**names, **inside, **others}, checks
