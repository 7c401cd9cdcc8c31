"""Evaluate a checkpoint on the sets of DataLoader.Eval, and write the report of a run or test: `plsc
eval`."""

from __future__ import annotations

import datetime
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import paddle

from plsc import distributed
from plsc.config import Config
from plsc.distributed import environment
from plsc.errors import UserError, writing
from plsc.evaluation.results import write_results
from plsc.training.evaluator import Evaluator, build_sets, needs_head
from plsc.training.resume import build_saved_head, load_network
from plsc.training.start import open_checkpoint
from plsc.utils.logging import say
from plsc.utils.metrics import read_metrics
from plsc.utils.version import __version__


def evaluate(cfg: Config, model: paddle.nn.Layer | None = None) -> dict[str, Any]:
    """Evaluate a checkpoint, and return the main set's numbers, as `Entry.evaluate` says. Every rank calls
    it, after `start`.

    model: a Layer that takes the weights instead of Model.name's.
    """
    if not cfg.DataLoader.Eval.sets():
        raise UserError("DataLoader.Eval.dataset: is null; name a data set to test on")
    saved = open_checkpoint(cfg)
    sets = build_sets(cfg, saved.preprocessing, saved.num_classes, names=saved.classes())
    backbone = load_network(saved, cfg, model)
    head = build_saved_head(cfg, saved) if needs_head(sets) else None
    evaluator = Evaluator(cfg.DataLoader, sets, backbone, saved.num_classes, head)
    evaluator.evaluate(saved.step)
    if distributed.rank() == 0:
        facts = {"checkpoint": str(saved.path), "step": saved.step}
        finish(cfg, evaluator, Path(cfg.Global.output_dir) / "test", f"checkpoint {saved.path}", facts)
    return evaluator.row


def finish(cfg: Config, evaluator: Evaluator, folder: Path, how: str, facts: dict[str, Any]) -> None:
    """Write table, results.json, report and the last line. Rank 0 calls it.

    Args:
        evaluator: has evaluated.
        how: how long the training took, or which checkpoint was tested; for the report.
        facts: of results.json; with "checkpoint" for a test, else with "step" and "best".
    """
    result = evaluator.results.get(evaluator.main)
    metrics = Path(cfg.Global.output_dir) / "metrics.jsonl"
    rows = read_metrics(metrics) if metrics.is_file() else []
    sets = [
        " ".join([section.name, *(f"{key}={value}" for key, value in section.keywords.items())])
        for section in cfg.DataLoader.Train.sets
    ]
    summary = {
        "run": str(Path(cfg.Global.output_dir)),
        "date": datetime.datetime.now().astimezone().isoformat(" ", "minutes"),
        "command": shlex.join(["plsc", *sys.argv[1:]]),
        "version": f"plsc {__version__}, Python {platform.python_version()}",
        "trained on": f"{' and '.join(sets)}, {evaluator.num_classes:,} classes",
        "training and evaluation" if "checkpoint" not in facts else "evaluated": how,
        "ranks": environment.world_size_from_env(),
        "head": cfg.Head.name,
        "backbone": cfg.Model.name,
    }
    facts = {**facts, "main": evaluator.main, "flip": cfg.DataLoader.Eval.flip}
    remedy = "the checkpoints are whole, the report is not: make space there, and resume or use plsc eval"
    with writing(folder, remedy=remedy):
        page = write_results(
            folder,
            evaluator.sets,
            evaluator.results,
            rows,
            cfg.to_yaml(),
            summary,
            facts,
        )
    line = f"{result.headline} on {evaluator.main}" if result else "nothing evaluated"
    if "checkpoint" not in facts:
        line += f", newest checkpoint step {facts['step']}"
        if facts["best"]:
            line += ", best step {step} ({metric} {value:.4f})".format(**facts["best"])
    say(f"done: {line}, results in {folder}, report {page}")
