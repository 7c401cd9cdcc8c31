"""Export the backbone to files that run without plsc, checked against the training graph: `plsc export`.

    image      float32 [batch, C, H, W]: raw pixels 0..255, of the preprocessing's size and channel order
    embedding  float32 [batch, D]: of length 1, so that a dot product is the cosine (zeros stay zeros)

Normalising the input and the embedding is part of the graph. What is left to do outside, and the cosine above
which two images are of the same class, stands in preprocessing.json; README.txt says it to people.

The graphs for Paddle Inference and ONNX Runtime lie in the folder itself, those for insightface and PaddleX
in folders of their names.

Try it: `pytest tests/apps/export/test_export.py`.
"""

import copy
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import paddle
from paddle import nn

from plsc import distributed
from plsc.apps.export.description import describe, readme
from plsc.apps.export.graphs import check, make_example, save_paddle
from plsc.apps.export.onnx_graph import NEED_ONNX, doubtful_layers, save_onnx, why_no_onnx
from plsc.apps.export.other_programs import refuse_other_pictures, save_insightface, save_paddlex
from plsc.config import Config
from plsc.errors import UserError
from plsc.training.load_weights import load_network
from plsc.training.run_folder import open_checkpoint
from plsc.utils.atomic_write import atomic_write, remove
from plsc.utils.files import read_json
from plsc.utils.logging import get_logger

_CHECKED_BATCHES = (1, 8)


def export_checkpoint(
    cfg: Config, output: str | os.PathLike | None = None, model: nn.Layer | None = None
) -> dict[str, Any]:
    """Export the checkpoint that a config names. Every rank calls it, after `start`.

    Args:
        output: the folder; None: output_dir/export.
        model: a Layer that takes the weights instead of Model.name's.

    Returns what `export` returns.
    """
    saved = open_checkpoint(cfg.Global)
    backbone = load_network(saved, cfg, model)
    flip = cfg.DataLoader.Eval.flip
    folder = Path(output) if output else Path(cfg.Global.output_dir) / "export"

    def write() -> dict[str, Any]:
        facts = export(
            backbone,
            folder,
            preprocessing=saved.preprocessing,
            formats=cfg.Export.formats,
            flip=flip,
            threshold=saved.threshold(flip),
            network=saved.network(flip),
        )
        print(f"done: exported {saved.path} to {folder}")
        return facts

    return distributed.run_on_rank_0(write)


def export(
    model: nn.Layer,
    out_dir: str | os.PathLike,
    *,
    preprocessing: Any,
    formats: Sequence[str] = ("paddle", "onnx"),
    flip: bool = False,
    threshold: float | None = None,
    network: str | None = None,
) -> dict:
    """Write `model` (prepared images [B, *shape] -> embeddings [B, D]) to the folder `out_dir`, for any B.

    The folder appears, or replaces that of an earlier export, when every format is written and agrees with
    the training graph in eval mode, both on the CPU. Formats that need ONNX are skipped with a warning where
    it cannot be written. If the conversion fails, the folder gets the other formats, and UserError tells why.
    `model` stays as and where it is.

    Args:
        preprocessing: of the data set, a plsc.utils.preprocessing.Preprocessing.
        formats: as in Export.formats.
        flip: add the embedding of the mirror image within the graph, as `plsc eval` and `plsc predict` do.
        threshold: the cosine above which two pictures are of one class; None: not known.
        network: the identity that plsc.checkpoint.saved.Checkpoint.network computes.

    Returns: what preprocessing.json has, and "folder".
    Raises: UserError (no format can be written here, or one does not take these images, before anything is
        written; a model that does not export truly).
    """
    out = Path(os.path.realpath(out_dir))  # a link stays one
    formats = _possible(formats)
    refuse_other_pictures(formats, preprocessing)
    _refuse_other_files(out)
    before, failure = _identity(out), None
    with atomic_write(out, new=True) as tmp:
        tmp.mkdir(parents=True)
        examples, paddle_graph = _on_cpu(model, preprocessing, flip, tmp)
        graphs = {"paddle": paddle_graph}
        facts = describe(preprocessing, examples[0][1].shape[1], flip, threshold, network)
        if "paddlex" in formats:
            graphs["paddlex"] = save_paddlex(tmp, paddle_graph, preprocessing)
        compare = lambda kinds: [
            check(tmp, kind, graphs[kind], *given) for kind in kinds for given in examples
        ]
        checks = compare(kind for kind in formats if kind not in NEED_ONNX)
        if not NEED_ONNX.isdisjoint(formats):
            try:
                graphs["onnx"] = save_onnx(tmp, paddle_graph, facts)
                if "insightface" in formats:
                    graphs["insightface"] = save_insightface(tmp, graphs["onnx"])
                checks += compare(kind for kind in formats if kind in NEED_ONNX)
            except UserError as error:
                failure, formats = error, [kind for kind in formats if kind not in NEED_ONNX]
                if not formats:
                    raise _about_onnx(error, model, "nothing was written") from error
        graphs = {kind: graphs[kind] for kind in formats}
        facts = {**facts, "files": graphs, "checks": checks}
        for name in set(os.listdir(tmp)) - {Path(name).parts[0] for name in _files(graphs)}:
            remove(tmp / name)
        (tmp / "preprocessing.json").write_text(json.dumps(facts, indent=1) + "\n")
        (tmp / "README.txt").write_text(readme(facts))
        if before is not None and _identity(out) == before:
            os.rename(out, tmp.with_name("before"))  # which is removed with its folder
    if failure:
        raise _about_onnx(failure, model, f"{', '.join(formats)} written to {out}") from failure
    doubtful = doubtful_layers(model)
    if doubtful and not NEED_ONNX.isdisjoint(formats):
        get_logger().warning(
            f"ONNX: paddle2onnx is not known to convert {', '.join(doubtful)} rightly; random images agree, "
            "compare your own"
        )
    return {**facts, "folder": str(out)}


def _about_onnx(failure: UserError, model: nn.Layer, rest: str) -> UserError:
    """Say why there is no ONNX graph, which layers may be the cause, and what else there is."""
    doubtful = doubtful_layers(model)
    cause = f"; it is not known to convert {', '.join(doubtful)} rightly" if doubtful else ""
    return UserError(f"no ONNX graph: {failure.text}{cause}; {rest}", key="Export.formats")


def _files(graphs: dict[str, dict]) -> list[str]:
    return [name for graph in graphs.values() for name in graph["files"]]


def _on_cpu(model: nn.Layer, preprocessing: Any, flip: bool, folder: Path) -> tuple[list, dict]:
    """Make examples and the graph of Paddle Inference of a copy of `model` on the CPU, as exported graphs are
    run: a GPU's products may have fewer digits."""
    device = paddle.get_device()
    paddle.set_device("cpu")
    try:
        model = copy.deepcopy(model)
        model.to(device="cpu")
        model.eval()
        examples = [make_example(model, preprocessing, flip, batch) for batch in _CHECKED_BATCHES]
        return examples, save_paddle(model, preprocessing, flip, folder)
    finally:
        paddle.set_device(device)


def _possible(formats: Sequence[str]) -> list[str]:
    """Skip the formats that cannot be written in this environment, with a warning. UserError if none
    is left."""
    possible = [kind for kind in formats if kind not in NEED_ONNX]
    why = why_no_onnx() if len(possible) < len(formats) else None
    if why is None:
        return [*formats]
    skipped = ", ".join(kind for kind in formats if kind in NEED_ONNX)
    if not possible:
        raise UserError(f"{skipped} {why}; or set Export.formats=[paddle]", key="Export.formats")
    get_logger().warning(f"Export.formats: {skipped} skipped, which {why}")
    return possible


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return what tells a folder from another one that has taken its name; None: there is none."""
    if not folder.exists():
        return None
    status = folder.stat()
    return status.st_ino, status.st_mtime_ns


def _refuse_other_files(out: Path) -> None:
    """Refuse a place that holds anything but an export, since it is replaced as a whole."""
    facts, written = out / "preprocessing.json", set()
    if facts.is_file():
        files = _files(read_json(facts).get("files", {}))
        written = {facts.name, "README.txt", *(Path(name).parts[0] for name in files)}
    if out.is_file() or (out.is_dir() and not written.issuperset(os.listdir(out))):
        raise UserError(f"{out}: has other files than an export; name a new or empty folder for the export")
