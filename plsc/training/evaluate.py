"""Evaluate a checkpoint on the sets of DataLoader.Eval, and write the report: `plsc eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import paddle

from plsc import distributed
from plsc.config import Config
from plsc.errors import UserError
from plsc.training.evaluator import (
    build_saved_evaluator,
    build_saved_sets,
)
from plsc.training.finish import finish
from plsc.training.start import open_checkpoint


def evaluate(
    cfg: Config,
    model: paddle.nn.Layer | None = None,
) -> dict[str, Any]:
    """Evaluate a checkpoint, and return the main set's numbers, as `Entry.evaluate` says. Every rank calls
    it, after `start`.

    model: a Layer that takes the weights instead of Model.name's.
    """
    if cfg.DataLoader.Eval.dataset is None:
        raise UserError("DataLoader.Eval.dataset: is null; name a data set to test on")
    saved = open_checkpoint(cfg)
    sets = build_saved_sets(cfg, saved)
    evaluator = build_saved_evaluator(cfg, saved, sets, model)
    evaluator.evaluate(saved.step)
    if distributed.rank() == 0:
        facts = {"checkpoint": str(saved.path), "step": saved.step}
        how = f"checkpoint {saved.path}"
        finish(cfg, evaluator, Path(cfg.Global.output_dir) / "test", how, facts)
    return evaluator.row
