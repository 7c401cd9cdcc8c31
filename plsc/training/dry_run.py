"""Plan a run without training: `plsc train --dry-run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plsc.checkpoint.store import newest_step
from plsc.config import Config
from plsc.distributed import environment
from plsc.training.start import find_start
from plsc.utils.loggers import check_packages


def dry_run(cfg: Config, ranks: int | None = None, model: Any = None) -> str:
    """Return the resolved config and the plan of the run, as `Entry.dry_run` says.

    ranks: for so many; None: for this launch's.
    model: a Layer in place of the config's.
    """
    ranks = ranks or environment.world_size_from_env()
    cfg.check_ranks(ranks)
    cfg.check_data()
    check_packages(cfg.Global.loggers)
    environment.prepare(cfg.Global.threads, cfg.Global.device)
    from plsc.distributed import device
    from plsc.training.build import build_trainer
    from plsc.training.plan import byte_lines, plan_lines

    kind = device.decide(cfg.Global.device, [device.why_none(cfg.Global.device)])
    in_memory = kind == environment.CPU or cfg.Head.bank != "device"
    device.use(environment.CPU)
    run = build_trainer(cfg, model, planned_ranks=ranks)
    plan = [*plan_lines(run, ranks), *byte_lines(run, ranks, in_memory)]
    if cfg.Global.init_from and (
        cfg.Global.overwrite or not newest_step(Path(cfg.Global.output_dir, "checkpoints"))
    ):
        plan.append(f"plan: start    the weights of {find_start(cfg)}, and its centres by name")
    return "\n".join([cfg.to_yaml(), *plan])
