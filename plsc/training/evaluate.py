"""Evaluate a checkpoint on the sets of DataLoader.Eval, and write the report: `plsc eval`."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import paddle

from plsc import distributed
from plsc.config import Config
from plsc.errors import UserError
from plsc.evaluation.results import read_compared
from plsc.training.evaluator import (
    build_saved_evaluator,
    build_saved_sets,
    main_pairs,
    refuse_other_flip,
    warn_of_other_flip,
)
from plsc.training.finish import finish
from plsc.training.start import open_checkpoint


def evaluate(
    cfg: Config,
    set_threshold: bool = False,
    compare: str | os.PathLike | None = None,
    calibrate: bool = False,
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
    compared = read_compared(compare, sets) if compare else None
    for option, is_asked in (("--set-threshold", set_threshold), ("--calibrate", calibrate)):
        if is_asked:
            main_pairs(sets, option)
    if calibrate and not set_threshold:
        # A stored threshold may lie on rank 0's machine alone.
        distributed.run_on_rank_0(partial(refuse_other_flip, saved, cfg.DataLoader.Eval.flip))
    evaluator = build_saved_evaluator(cfg, saved, sets, model)
    evaluator.evaluate(saved.step)
    if distributed.rank() == 0:
        facts = {"checkpoint": str(saved.path), "step": saved.step}
        if set_threshold:
            if not calibrate:
                warn_of_other_flip(saved, cfg.DataLoader.Eval.flip)
            evaluator.store_threshold(saved)
        if calibrate:
            evaluator.store_calibration(saved)
        how = f"checkpoint {saved.path}"
        finish(cfg, evaluator, Path(cfg.Global.output_dir) / "test", how, facts, compared)
    return evaluator.row
