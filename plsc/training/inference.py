"""Evaluate a checkpoint on DataLoader.Eval's sets and write the report, or embed images with its
network.

Try it: `plsc eval -c output/faces`, or `plsc predict images/ --classes -c output/faces`.
"""

import csv
import datetime
import io
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from plsc import distributed
from plsc.checkpoint import store
from plsc.config import Config
from plsc.data.to_predict import samples_to_predict
from plsc.distributed import environment
from plsc.errors import UserError, escape, writing
from plsc.evaluation.results import write_results
from plsc.evaluation.search import unit_rows
from plsc.evaluation.sets import build_sets
from plsc.heads.build import build_head
from plsc.heads.softmax import SoftmaxHead
from plsc.training.embed import embed
from plsc.training.evaluator import Evaluator
from plsc.training.load_weights import load_network, load_rows
from plsc.training.metrics import read_metrics
from plsc.training.run_folder import open_checkpoint
from plsc.utils.atomic_write import atomic_write, replace_file
from plsc.utils.logging import log_skipped, print_lines, warn_on_rank_0
from plsc.utils.version import __version__


def evaluate(cfg: Config, model: paddle.nn.Layer | None = None) -> dict[str, Any]:
    """Evaluate a checkpoint, and return the main set's numbers, as `Entry.evaluate` describes.

    Every rank calls it, after `start`.

    Args:
        cfg: config that names the checkpoint and the sets.
        model: Layer to copy instead of building Model.name's, or None.
    """
    saved = open_checkpoint(cfg.Global)
    if not cfg.DataLoader.Eval.sets():
        raise UserError("is null; name a data set to test on", key="DataLoader.Eval.dataset")
    sets = build_sets(
        cfg.DataLoader, cfg.Global.seed, saved.preprocessing, saved.num_classes, saved.classes()
    )
    backbone = load_network(saved, cfg, model)
    head = open_head(cfg, saved) if any(data.labels is not None for data in sets.values()) else None
    evaluator = Evaluator(cfg.DataLoader, sets, backbone, saved.num_classes, head)
    evaluator.evaluate(saved.step)
    if evaluator.rows and distributed.rank() == 0:  # also if some sets failed
        facts = {"checkpoint": str(saved.path), "step": saved.step}
        finish(cfg, evaluator, Path(cfg.Global.output_dir) / "test", f"checkpoint {saved.path}", facts)
    if evaluator.failures:
        raise UserError("\n".join(evaluator.failures))
    return evaluator.row


def finish(cfg: Config, evaluator: Evaluator, folder: Path, how: str, facts: dict[str, Any]) -> None:
    """Write the table, results.json and the report, and print the last line. Rank 0 calls it.

    Args:
        cfg: the run's config.
        evaluator: has a finished evaluation's results.
        folder: folder to write to.
        how: text for the report: how long the training took, or which checkpoint was tested.
        facts: facts for results.json. A test has "checkpoint" and "step", a training "step" and "best".
    """
    result = evaluator.results.get(evaluator.main)
    metrics = Path(cfg.Global.output_dir) / "metrics.jsonl"
    rows = read_metrics(metrics) if metrics.is_file() else []
    sets = [
        " ".join([section.name, *(f"{key}={value}" for key, value in section.model_extra.items())])
        for section in cfg.DataLoader.Train.sets
    ]
    summary = {
        "run": str(Path(cfg.Global.output_dir)),
        "date": datetime.datetime.now().astimezone().isoformat(" ", "minutes"),
        "command": _command(sys.argv),
        "version": f"plsc {__version__}, Python {platform.python_version()}",
        "trained on": f"{' and '.join(sets)}, {evaluator.num_classes:,} classes",
        "training and evaluation" if "checkpoint" not in facts else "evaluated": how,
        "ranks": environment.world_size_from_env(),
        "head": cfg.Head.name,
        "backbone": cfg.Model.name,
    }
    facts = {**facts, "main": evaluator.main, "flip": cfg.DataLoader.Eval.flip}
    with writing(
        folder,
        remedy="the checkpoints are complete, the report is not; free some space there, then resume or "
        "run plsc eval",
    ):
        page = write_results(folder, evaluator.sets, evaluator.results, rows, cfg.to_yaml(), summary, facts)
    without = f"{evaluator.main} was not evaluated" if evaluator.main else "nothing evaluated"
    line = f"{result.headline} on {evaluator.main}" if result else without
    if "checkpoint" not in facts:
        line += f", newest checkpoint step {facts['step']}"
        if facts["best"]:
            line += ", best step {step} ({metric} {value:.4f})".format(**facts["best"])
    print_lines(f"done: {line}, results in {folder}, report {page}")


def _command(argv: Sequence[str]) -> str:
    """Return the command line that started this process, as a user would type it.

    Args:
        argv: the process's arguments, as in sys.argv.
    """
    program = Path(argv[0])
    if program.name == "plsc" or program.parts[-2:] == ("plsc", "__main__.py"):
        return shlex.join(["plsc", *argv[1:]])
    return shlex.join(["python", *argv]) if program.is_file() else "in Python"


def open_network(
    cfg: Config, model: paddle.nn.Layer | None = None
) -> tuple[paddle.nn.Layer, store.Checkpoint]:
    """Open the checkpoint that a config names, and build its network with the weights to use.

    Every rank calls it, after `start`.

    Args:
        cfg: config that names the checkpoint.
        model: Layer to copy instead of building Model.name's, or None.

    Returns the network, in evaluation mode, and the checkpoint.
    """
    saved = open_checkpoint(cfg.Global)
    backbone = load_network(saved, cfg, model)
    backbone.eval()
    return backbone, saved


def open_head(cfg: Config, saved: store.Checkpoint) -> SoftmaxHead:
    """Build a checkpoint's head with its class centres. Every rank calls it.

    Args:
        cfg: config with the head's section, whose kind must be the checkpoint's.
        saved: the checkpoint.
    """
    made_with = saved.config.get("Head", {}).get("name", cfg.Head.name)
    if made_with.removeprefix("dist_") != cfg.Head.kind:  # array shapes may agree although kinds differ
        raise UserError(f"is {cfg.Head.name}, and {saved.path} was made with {made_with}", "Head.name")
    if saved.num_classes == 0:
        raise UserError(f"{saved.path} has no classes; name the folder of a run that plsc train made")
    sizes = saved.num_classes, cfg.Model.embedding_size
    head = build_head(cfg.Head, cfg.Optimizer.build_rule(), *sizes, cfg.Global.seed, cfg.Global.output_dir)
    load_rows(head, saved)
    return head


def predict(
    cfg: Config, images: Any, network: tuple[paddle.nn.Layer, store.Checkpoint]
) -> tuple[np.ndarray, list[str]]:
    """Embed images, as `Entry.predict` describes. Every rank calls it, after `start`.

    Args:
        cfg: config with the batch size and the setting for mirror images.
        images: the images, as `Entry.predict` takes them.
        network: what `open_network` returned.

    Returns the embeddings [n, D] float32, each of length 1, and the n names.
    """
    embeddings, names, unread = _embed_given(cfg, images, network)
    embeddings = unit_rows(embeddings)
    embeddings[unread] = np.nan
    return embeddings, names


def classify(
    cfg: Config,
    images: Any,
    network: tuple[paddle.nn.Layer, store.Checkpoint],
    head: SoftmaxHead,
    top: int,
) -> tuple[list[list[str | None]], np.ndarray, list[str]]:
    """Find images' classes, as `Entry.classify` describes. Every rank calls it, after `start`.

    Args:
        cfg, images, network: as for `predict`.
        head: what `open_head` returned for the network's checkpoint.
        top: how many classes to find for each image.
    """
    embeddings, names, unread = _embed_given(cfg, images, network)
    size = cfg.DataLoader.Train.batch_size
    batches = np.array_split(embeddings, range(size, len(embeddings), size))
    found = [head.classify(paddle.to_tensor(batch), top) for batch in batches]
    number, similarity = (np.concatenate([tensor.numpy() for tensor in each]) for each in zip(*found))
    number[unread], similarity[unread] = head.shard.num_classes, np.nan
    class_names = network[1].classes() or [str(each) for each in range(head.shard.num_classes)]
    class_names = [*class_names, None]  # the number of no class is the last one
    return [[class_names[each] for each in row] for row in number.tolist()], similarity, names


def _embed_given(
    cfg: Config, images: Any, network: tuple[paddle.nn.Layer, store.Checkpoint]
) -> tuple[np.ndarray, list[str], list[int]]:
    """Embed the images that `Entry.predict` was given. Log why images cannot be read.

    Returns the embeddings [n, D] float32, finite and not normalised, the n names, and the numbers of the
    images that cannot be read. Their embeddings are zero.

    Raises UserError if no image can be read.
    """
    backbone, saved = network
    read, names, own = samples_to_predict(images, saved.preprocessing)
    if not names:
        raise UserError("predict: no images given, give at least one")
    batch, flip = cfg.DataLoader.Train.batch_size, cfg.DataLoader.Eval.flip
    embeddings = embed(backbone, read, len(names), saved.preprocessing, batch, flip)
    unread = {number: why for part in distributed.gather_objects(own) for number, why in part.items()}
    if len(unread) == len(names):
        several = f"predict: none of {len(names):,} images can be read, the first one: "
        raise UserError((several if len(names) > 1 else "") + unread[0])
    if distributed.rank() == 0:
        log_skipped(unread[number] for number in sorted(unread))
    embeddings[[*unread]] = 0
    units = unit_rows(embeddings)
    if (bad := np.isnan(units).any(axis=1)).any():
        raise UserError(
            f"predict: the embedding of {escape(names[np.argmax(bad)])} is not finite ({bad.sum():,} of "
            f"{len(names):,} images); the network of {saved.path} has diverged, take an earlier checkpoint"
        )
    zero = ~units.any(axis=1)
    zero[[*unread]] = False
    if zero.any():
        warn_on_rank_0(
            f"predict: {zero.sum():,} of {len(names):,} embeddings are zero, the first one that of "
            f"{escape(names[np.argmax(zero)])}; the network sees nothing in these images, probably since "
            "they are nearly black (plsc doctor finds such images)"
        )
    return embeddings, names, sorted(unread)


def _about(unread: np.ndarray) -> str:
    """Describe how many images could not be read, for a command's last line."""
    return f"; {unread.sum():,} of the images cannot be read, see the log" if unread.any() else ""


def write_classes(
    folder: Path,
    classes: Sequence[Sequence[str | None]],
    similarity: np.ndarray,
    names: Sequence[str],
    what: str,
) -> None:
    """Write classes.csv, with a row for each image and class, to a folder. Rank 0 calls it.

    Args:
        folder: folder to write to.
        classes: n lists with T classes each. For None, the file has an empty field.
        similarity: float32 [n, T]. For NaN, the file has an empty field.
        names: the images' n names.
        what: the similarity's name, for the heading.
    """
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["image", "class", what])
    for name, of_image, values in zip(names, classes, similarity.tolist()):
        for each, value in zip(of_image, values):
            rows.writerow([name, each, "" if np.isnan(value) else f"{value:.4f}"])
    with writing(folder, remedy="free some space, or name another folder"):
        replace_file(folder / "classes.csv", text.getvalue().encode("utf-8", "surrogateescape"))
    about = _about(np.isnan(similarity).any(axis=1))
    print(f"done: the classes of {len(names):,} images in {folder / 'classes.csv'}{about}")


def write_embeddings(folder: Path, emb: np.ndarray, names: Sequence[str]) -> None:
    """Write embeddings.npy and names.txt to a folder. Rank 0 calls it.

    Args:
        folder: folder to write to.
        emb: embeddings [n, D].
        names: the images' n names.
    """
    with writing(folder, remedy="free some space, or name another folder"):
        # One name per line. File names' bytes stay as they are.
        lines = (escape(name) if "\n" in name or "\r" in name else name for name in names)
        text = "".join(f"{line}\n" for line in lines)
        # Both are written before either gets its name, so the names are never another call's.
        with atomic_write(folder / "names.txt") as beside, atomic_write(folder / "embeddings.npy") as array:
            beside.write_bytes(text.encode("utf-8", "surrogateescape"))
            with open(array, "xb") as file:
                np.save(file, emb)
    about = _about(np.isnan(emb).any(axis=1))
    print(f"done: {len(names):,} embeddings of {emb.shape[1]} numbers in {folder / 'embeddings.npy'}{about}")
