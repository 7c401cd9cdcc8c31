"""Evaluate a checkpoint on the sets of DataLoader.Eval, and write the report: `plsc eval`."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from plsc import distributed
from plsc.checkpoint.saved import Checkpoint
from plsc.config import Config
from plsc.errors import UserError
from plsc.evaluation.as_norm import Cohort
from plsc.evaluation.groups import read_groups
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
from plsc.utils.bfloat16 import float32_of

_COHORT = 10_000  # classes: more hardly change the largest cosines


def evaluate(
    cfg: Config,
    set_threshold: bool = False,
    compare: str | os.PathLike | None = None,
    calibrate: bool = False,
    groups: str | os.PathLike | None = None,
    model: paddle.nn.Layer | None = None,
    as_norm: int | None = None,
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
    grouping = main_pairs(sets, "--groups").group(read_groups(groups)) if groups else None
    cohort = None
    if as_norm is not None:
        main_pairs(sets, "--as-norm")
        cohort = Cohort(_some_centres(saved), as_norm)
    evaluator = build_saved_evaluator(cfg, saved, sets, model, grouping, cohort)
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


def _some_centres(saved: Checkpoint) -> np.ndarray:
    """Read the class centres of a checkpoint, of many classes some evenly spaced ones: float32 [K,
    embedding_size]."""
    last = saved.num_classes - 1
    chosen = np.linspace(0, last, min(saved.num_classes, _COHORT)).astype(int).tolist()
    rows = np.concatenate([float32_of(saved.rows("centres", number, number + 1)) for number in chosen])
    return rows.reshape(-1, saved.embedding_size)  # sub-centres are embeddings, too
