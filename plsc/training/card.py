"""Make the model card of a run: its numbers, and a hash of all that they depend on.

Rank 0 calls it at the end of a training, and `plsc card write`. plsc/evaluation/card.py has what is in a
card, and its text; check_card.py compares a card with its run.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import paddle

from plsc import distributed
from plsc.checkpoint.saved import Checkpoint
from plsc.config import Config
from plsc.data import fingerprint
from plsc.data.dataset import Dataset, shared_identities
from plsc.distributed import accelerator, environment
from plsc.errors import UserError, shown
from plsc.evaluation.card import JSON, MARKDOWN, Card, files_of, read_card, write_card
from plsc.evaluation.results import numbers_of
from plsc.evaluation.sets import EvalSet
from plsc.native import library
from plsc.training.build import build_training_set
from plsc.training.evaluator import build_saved_evaluator, build_saved_sets
from plsc.training.finish import date
from plsc.utils.files import read_json, sha256_of
from plsc.utils.logging import get_logger
from plsc.utils.measure import commit, processor
from plsc.utils.version import __version__

PICTURES = {
    "ROC": "roc.png",
    "Similarities of same and different pairs": "histogram.png",
    "P(same)": "calibration.png",
    "Ranks": "cmc.png",
    "Confusion": "confusion.png",
    "Training": "curves.png",
}
# Bytes of a file, such as a pack of millions of images, above which only what is evaluated of it is hashed.
_LARGE = 2**31
# Variables of the environment that choose the code of matrix products and convolutions on a CPU.
_INSTRUCTIONS = ("MKL_CBWR", "MKL_DEBUG_CPU_TYPE", "ONEDNN_MAX_CPU_ISA")
# What the training data are needed for.
TRAINING_DATA = "training data: names and labels"
TRAINED_ON = "trained on"
TRAINED_ON_IS_NOT_KNOWN = "whether its identities were trained on is not known, the data do not name them."


def write_of_training(
    cfg: Config, step: int, dataset: Dataset, sets: Mapping[str, EvalSet], results: Mapping[str, Any]
) -> None:
    """Write the card of a training that has ended with `step`, beside its report. Rank 0 calls it."""
    folder = Path(cfg.Global.output_dir)
    saved = Checkpoint.open(folder / "checkpoints" / f"step-{step:08d}", verify=False)
    write_card(make_card(cfg, saved, dataset, sets, results, _pictures(folder)), folder)


def make_card(
    cfg: Config,
    saved: Checkpoint,
    dataset: Dataset | None,
    sets: Mapping[str, EvalSet],
    results: Mapping[str, Any],
    pictures: Mapping[str, str],
) -> Card:
    """Make the card of a checkpoint.

    Args:
        dataset: that it was trained on; None: it is not here, and what it would say is left out.
        sets, results: that it was evaluated on, the main one first, and the results, by title.
        pictures: heading -> file beside the card.
    """
    folder = Path(cfg.Global.output_dir)
    results = {title: results[title] for title in sets}
    return Card(
        run=shown(folder),
        date=date(),
        command=environment.command_line(),
        licence=cfg.Global.data_licence,
        checkpoint=saved.path.name,
        step=saved.step,
        headline=next((result.headline for result in results.values()), ""),
        network=saved.network,
        facts=_facts(cfg, saved, dataset, sets),
        sets=json.loads(json.dumps(numbers_of(results))),
        limits=list(_limits(saved, dataset, sets, results)),
        software=software(),
        machine=machine_of(cfg),
        files=hash_files(cfg, saved),
        data=hash_data(dataset, sets),
        pictures=dict(pictures),
        config=(folder / "config.yaml").read_text(encoding="utf-8"),
    )


def write(cfg: Config, saved: Checkpoint, model: paddle.nn.Layer | None = None) -> Path:
    """Evaluate a checkpoint of the run, and write the card to its folder; return the path of card.md. Every
    rank calls it.

    model: a Layer that takes the weights instead of Model.name's.
    """
    folder = Path(cfg.Global.output_dir)
    if saved.path.parent.resolve() != (folder / "checkpoints").resolve():
        raise UserError(
            f"Global.checkpoint: {saved.path} is not in {folder / 'checkpoints'}; set it to newest or best"
        )
    evaluator = build_saved_evaluator(cfg, saved, build_saved_sets(cfg, saved), model)
    evaluator.evaluate(saved.step)

    def write_it() -> Path:
        dataset = build_training_set(cfg)
        pictures = _pictures(folder) if _step_of_report(folder) == saved.step else {}
        write_card(make_card(cfg, saved, dataset, evaluator.sets, evaluator.results, pictures), folder)
        return folder / MARKDOWN

    return distributed.run_on_rank_0(write_it)


def files_for_export(folder: Path, saved: Checkpoint) -> dict[str, bytes]:
    """Return the files of the card of the run in `folder`, without pictures, for an export; {} if there is
    none of this network."""
    if not (folder / JSON).is_file():
        return {}
    card = read_card(folder)
    if card.network != saved.network:
        get_logger().info(
            f"{folder / JSON} is of {card.checkpoint}, another network: the export goes without it"
        )
        return {}
    return files_of(card.model_copy(update={"pictures": {}}))


def _step_of_report(folder: Path) -> int | None:
    """Return the step that the pictures in the folder of a run are of; None if that is not known."""
    try:
        return read_json(folder / "results.json")["step"]
    except (UserError, KeyError, TypeError):
        return None


def _pictures(folder: Path) -> dict[str, str]:
    return {heading: file for heading, file in PICTURES.items() if (folder / file).is_file()}


def software() -> dict[str, str | None]:
    """Return the versions of what computes the numbers."""
    return {
        "plsc": __version__,
        "commit": commit(),
        "Python": platform.python_version(),
        "Paddle": paddle.__version__,
        "numpy": np.__version__,
        "OpenCV": cv2.__version__,
    }


def machine_of(cfg: Config) -> dict[str, Any]:
    """Describe what the rounding of an evaluation depends on."""
    chosen = [f"{name}={os.environ[name]}" for name in _INSTRUCTIONS if name in os.environ]
    return {
        "processor": processor(),
        "device": accelerator.name(),
        "threads of a rank": cfg.Global.threads or environment.cpu_threads(),
        "ranks": environment.world_size_from_env(),
        "batch size": cfg.DataLoader.Eval.batch_size,
        "kernels": library() is not None,
        "instruction sets": " ".join(chosen) or "the processor's",
    }


def _facts(
    cfg: Config, saved: Checkpoint, dataset: Dataset | None, sets: Mapping[str, EvalSet]
) -> dict[str, str]:
    best = saved.best
    evaluated = [f"{title}: {data.describe()}" for title, data in sets.items()]
    facts = {
        "network": f"{cfg.Model.name}, embeddings of {saved.embedding_size}",
        "head": cfg.Head.name,
    }
    if dataset is not None:
        facts[TRAINED_ON] = f"{dataset.title}: {len(dataset):,} samples of {saved.num_classes:,} classes"
    facts["training"] = f"{saved.step:,} steps, {saved.epoch:,} epochs"
    facts["evaluated on"] = "; ".join(evaluated) or "nothing"
    train = cfg.DataLoader.Train
    if train.without:
        facts["left out"] = f"{len(train.without):,} classes (DataLoader.Train.without)"
    if train.corrections:
        facts["labels corrected by"] = ", ".join(train.corrections)
    if best:
        facts["best step"] = f"{best.step:,}: {best.metric} {best.value:.4f} on {best.set}"
    return facts


def _limits(
    saved: Checkpoint, dataset: Dataset | None, sets: Mapping[str, EvalSet], results: Mapping[str, Any]
) -> Iterator[str]:
    """Say what the numbers do not tell."""
    if not sets:
        yield "How good this network is, is not known: nothing was evaluated."
        return
    yield f"Evaluated on {', '.join(sets)} alone: other pictures, cameras and people may give other numbers, and need other thresholds."
    for title, result in results.items():
        rates = getattr(result, "tar_at_far", {})
        unknown = [far for far, rate in rates.items() if rate is None]
        if unknown:
            yield f"{title}: too few pairs for a false accept rate of {max(unknown):g} and below."
    for title, data in sets.items() if dataset is not None else ():
        if data.labels is None and shared_identities(dataset.identities, data.identities) is None:
            yield f"{title}: {TRAINED_ON_IS_NOT_KNOWN}"
    best = saved.best
    if best and best.step == saved.step:
        yield f"This step was chosen as the best on {best.set}, so its {best.metric} there is a little too high."


def hash_files(cfg: Config, saved: Checkpoint) -> dict[str, str]:
    """Hash the config, the checkpoint, and the files that the keys of the evaluation sets name."""
    folder = Path(cfg.Global.output_dir)
    hashes = {
        "config.yaml": sha256_of(folder / "config.yaml"),
        f"{saved.path.name}/manifest.json, which has the checksum of each file": sha256_of(
            saved.path / "manifest.json"
        ),
        f"{saved.weights_file} and the preprocessing: the network": saved.network,
    }
    for path, section in cfg.DataLoader.Eval.sets().items():
        for key, value in section.keywords.items():
            if isinstance(value, str) and os.path.isfile(value) and os.path.getsize(value) <= _LARGE:
                hashes[f"the file {'.'.join(path)}.{key}"] = sha256_of(value)
    return hashes


def hash_data(dataset: Dataset | None, sets: Mapping[str, EvalSet]) -> dict[str, str]:
    """Hash the training set, unless it is None, and the evaluation sets."""
    hashes = {}
    if dataset is not None:
        hashes[TRAINING_DATA] = fingerprint.names_and_labels(dataset)
    for title, data in sets.items():
        hashes[f"{title}: all samples, and what is compared"] = fingerprint.content(
            data.data, data.count, data.arrays()
        )
    return hashes
