"""Write the results of a finished run or test: table, results.json, report and the last line."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

from plsc.config import Config
from plsc.data.config import TrainDatasetCfg
from plsc.distributed import environment
from plsc.errors import writing
from plsc.utils.logging import say
from plsc.utils.metrics import read_metrics
from plsc.utils.version import __version__


def finish(
    cfg: Config,
    evaluator,
    folder: Path,
    how: str,
    facts: dict[str, Any],
) -> None:
    """Write table, results.json, report and the last line. Rank 0 calls it.

    Args:
        evaluator: has evaluated.
        how: how long the training took, or which checkpoint was tested; for the report.
        facts: of results.json; with "checkpoint" for a test, else with "step" and "best".
    """
    from plsc.evaluation.results import write_results

    result = evaluator.results.get(evaluator.main)
    metrics = Path(cfg.Global.output_dir) / "metrics.jsonl"
    rows = read_metrics(metrics) if metrics.is_file() else []
    summary = {
        "run": str(Path(cfg.Global.output_dir)),
        "date": datetime.datetime.now().astimezone().isoformat(" ", "minutes"),
        "command": _command(),
        "version": f"plsc {__version__}, Python {platform.python_version()}",
        "trained on": f"{' and '.join(map(_describe_set, cfg.DataLoader.Train.sets))}, {evaluator.num_classes:,} classes",
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


def _command() -> str:
    """Return the command of this process, as a shell takes it."""
    program, *arguments = sys.argv
    return shlex.join(["plsc" if os.path.basename(program) == "__main__.py" else program, *arguments])


def _describe_set(section: TrainDatasetCfg) -> str:
    return " ".join([section.name, *(f"{key}={value}" for key, value in section.keywords.items())])
