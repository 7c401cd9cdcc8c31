"""Export the backbone to files that run without plsc, and check them against the training graph.

Each exported graph has one input and one output:

    image      float32 [batch, C, H, W], raw pixels 0..255 in the preprocessing's size and channel order
    embedding  float32 [batch, D], unit rows, so that a dot product is the cosine (zeros stay zeros)

The graph normalises the image and the embedding. preprocessing.json describes the steps that remain outside
the graph, and the cosine above which two images show the same class. README.txt contains the same for
people.

The graphs for Paddle Inference and ONNX Runtime are in the folder itself. The graphs for insightface and
PaddleX are in subfolders with these names.

Try it: `plsc export -c output`, or `pytest tests/apps/export/test_export.py`.
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
from plsc.checkpoint.store import Checkpoint
from plsc.config import Config
from plsc.errors import UserError
from plsc.training.load_weights import has_weights
from plsc.utils.atomic_write import atomic_write, remove
from plsc.utils.files import read_json
from plsc.utils.logging import get_logger

_CHECKED_BATCHES = (1, 8)


def export_checkpoint(
    cfg: Config, output: str | os.PathLike | None, opened: tuple[nn.Layer, Checkpoint]
) -> dict[str, Any]:
    """Export the network of a checkpoint. Every rank calls it, after `start`.

    If the network's weights are no longer the checkpoint's, the export contains the weights that the network
    has now. It then has no threshold and no identity, because those are the checkpoint's.

    Args:
        cfg: the config.
        output: export folder. None is output_dir/export.
        opened: the network and its checkpoint, from plsc.training.inference.open_network.

    Returns the content of preprocessing.json, and "folder".
    """
    backbone, saved = opened
    flip = cfg.DataLoader.Eval.flip
    folder = Path(output) if output else Path(cfg.Global.output_dir) / "export"

    def write() -> dict[str, Any]:
        same = has_weights(backbone, saved)
        facts = export(
            backbone,
            folder,
            preprocessing=saved.preprocessing,
            formats=cfg.Export.formats,
            flip=flip,
            threshold=saved.threshold(flip) if same else None,
            network=saved.network(flip) if same else None,
        )
        changed = "" if same else ", with the weights that were changed since, without a threshold,"
        print(f"done: exported {saved.path}{changed} to {folder}")
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
    """Write `model` to a folder as graphs for any batch size.

    Every format is compared with the training graph in eval mode, both on the CPU. The folder appears only
    after that, and replaces an earlier export's folder. If this environment cannot write ONNX at all, for
    example because a package is missing, the formats that need it are skipped with a warning. If the
    conversion to ONNX fails, for example because the converter's process dies, the folder gets the other
    formats, and then UserError gives the reason. If there is no other format, nothing is written. `model`
    keeps its device and its mode.

    Args:
        model: prepared images float32 [B, *shape] -> embeddings [B, D].
        out_dir: export folder.
        preprocessing: the data set's plsc.utils.preprocessing.Preprocessing.
        formats: formats as in Export.formats.
        flip: add the mirror image's embedding within the graph, as `plsc eval` and `plsc predict` do.
        threshold: cosine above which two pictures show one class. None if not known.
        network: the identity that plsc.checkpoint.saved.Checkpoint.network computes.

    Returns the content of preprocessing.json, and "folder".

    Raises UserError before anything is written if no format can be written here, if a format does not take
    these images, or if the folder contains other files. Raises UserError later if a graph differs from the
    training graph.
    """
    out = Path(os.path.realpath(out_dir))  # if it is a symbolic link, replace the folder that it points to
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
        (tmp / "README.txt").write_text(readme(facts), encoding="utf-8")
        if before is not None and _identity(out) == before:
            os.rename(out, tmp.with_name("before"))  # removed together with its folder
    if failure:
        raise _about_onnx(failure, model, f"{', '.join(formats)} written to {out}") from failure
    doubtful = doubtful_layers(model)
    if doubtful and not NEED_ONNX.isdisjoint(formats):
        get_logger().warning(
            f"ONNX: it is not known whether paddle2onnx converts {', '.join(doubtful)} correctly; the "
            "outputs for random images are equal, so compare those for your own images"
        )
    return {**facts, "folder": str(out)}


def _about_onnx(failure: UserError, model: nn.Layer, rest: str) -> UserError:
    """Return the error for a missing ONNX graph. It names the reason and the layers that may be the cause.

    Args:
        failure: the conversion's error.
        model: the network.
        rest: the message's end, which lists what was written.
    """
    doubtful = doubtful_layers(model)
    cause = (
        f"; it is not known whether paddle2onnx converts {', '.join(doubtful)} correctly" if doubtful else ""
    )
    return UserError(f"no ONNX graph: {failure.text}{cause}; {rest}", key="Export.formats")


def _files(graphs: dict[str, dict]) -> list[str]:
    return [name for graph in graphs.values() for name in graph["files"]]


def _on_cpu(model: nn.Layer, preprocessing: Any, flip: bool, folder: Path) -> tuple[list, dict]:
    """Make the examples and the graph for Paddle Inference from a copy of `model` on the CPU.

    Exported graphs are compared on the CPU, because a GPU's products may have fewer digits.

    Returns examples for each batch size, see `make_example`, and the graph's names, see `save_paddle`.
    """
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
    """Return the formats that can be written in this environment. Warn about each skipped format.

    Raises UserError if no format can be written.
    """
    possible = [kind for kind in formats if kind not in NEED_ONNX]
    why = why_no_onnx() if len(possible) < len(formats) else None
    if why is None:
        return [*formats]
    skipped = ", ".join(kind for kind in formats if kind in NEED_ONNX)
    if not possible:
        raise UserError(f"{skipped} {why}; or set Export.formats=[paddle]", key="Export.formats")
    get_logger().warning(f"Export.formats: {skipped} skipped: ONNX {why}")
    return possible


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return a folder's inode and modification time, or None if it does not exist.

    They distinguish the folder from a later one with the same name.
    """
    if not folder.exists():
        return None
    status = folder.stat()
    return status.st_ino, status.st_mtime_ns


def _refuse_other_files(out: Path) -> None:
    """Raise UserError if `out` contains anything except an export, because it is replaced as a whole."""
    facts, written = out / "preprocessing.json", set()
    if facts.is_file():
        files = _files(read_json(facts).get("files", {}))
        written = {facts.name, "README.txt", *(Path(name).parts[0] for name in files)}
    if out.is_file() or (out.is_dir() and not written.issuperset(os.listdir(out))):
        raise UserError(f"{out}: contains files that no export wrote; name a new or empty folder")
