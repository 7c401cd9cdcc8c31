"""Plan a run without training: `plsc train --dry-run`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from plsc.config import Config
from plsc.config.advice import advice
from plsc.distributed import environment
from plsc.heads.config import format_rows
from plsc.training.stand_in import check_data
from plsc.utils.loggers import check_packages
from plsc.utils.sharding import split


def dry_run(
    cfg: Config, ranks: int | None = None, model: Any = None, make_optimizer: Callable | None = None
) -> str:
    """Return the resolved config with the source of each value, and the plan of the run, as `Entry.dry_run` says.

    ranks: for so many; None: for this launch's.
    model, make_optimizer: a Layer, and a function that makes an optimizer, in place of the config's.
    """
    ranks = ranks or environment.world_size_from_env(default=cfg.DataLoader.Train.planned_ranks)
    cfg.check_ranks(ranks)
    check_data(cfg)
    check_packages(cfg.Global.loggers)
    environment.prepare(cfg.Global.threads)
    from plsc.distributed.device import decide, why_no_gpu
    from plsc.distributed.sync_batch_norm import synchronise
    from plsc.heads.optimizer import Frozen
    from plsc.training.build import (
        build_evaluation_sets,
        build_loader,
        build_optimizer,
        build_training_set,
    )
    from plsc.training.build_head import build_margin
    from plsc.training.network import check_amp, layers_to_recompute
    from plsc.training.parts.compatible import build_compatible, head_of_old_classes
    from plsc.training.parts.teacher import build_teacher
    from plsc.training.plan_lines import plan_lines, weak_lines
    from plsc.training.resume import build_backbone

    decide(cfg.Global.device, [why_no_gpu()])  # for what it refuses
    dataset = build_training_set(cfg)
    loader = build_loader(cfg, dataset, environment.rank_from_env(), ranks)
    backbone = model or build_backbone(cfg, dataset.preprocessing.shape)
    if cfg.Model.sync_batchnorm:  # these for what they refuse
        backbone = synchronise(backbone)
    build_optimizer(cfg, backbone, make_optimizer)
    layers_to_recompute(cfg.Model.recompute, backbone)
    build_margin(cfg.Head)
    check_amp(cfg.Global.amp)
    sets = build_evaluation_sets(cfg, dataset)
    weak = weak_lines(cfg, loader.steps_per_epoch, sets)
    plan = [f"WARNING {line}" for line in [*advice(cfg, ranks, environment.local_size_from_env()), *weak]]
    plan += plan_lines(cfg, dataset, backbone, loader.steps_per_epoch, ranks)
    if teacher := build_teacher(cfg, dataset, alone=True):
        plan.append(f"plan: teacher  {teacher}")
    if compatible := build_compatible(cfg, dataset, alone=True):
        head = head_of_old_classes(cfg.Head)
        classes = split(dataset.num_classes, ranks)[0][1]
        size = format_rows(head, Frozen.moments, classes, cfg.Model.embedding_size)
        plan.append(
            f"plan: old      {compatible.path}, to be compatible with; {classes:,} classes per rank, {size}"
        )
    resumes = cfg.Global.resume and any(Path(cfg.Global.output_dir, "checkpoints").glob("step-*"))
    if cfg.Global.init_from and not resumes:
        from plsc.training.finetune import check_start

        total_steps = cfg.Global.total_steps(loader.steps_per_epoch)
        plan.append(f"plan: start    {check_start(cfg, backbone, dataset, total_steps)}")
    return "\n".join([cfg.to_yaml(sources=True), *plan])
