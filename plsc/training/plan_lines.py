"""Describe a run in a few lines before it starts: ranks, data, steps, backbone and head."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

from plsc.config import Config
from plsc.data.config import TrainCfg
from plsc.data.hold_out import few_identities
from plsc.errors import shown
from plsc.evaluation.sets import EvalSet
from plsc.evaluation.verification import ONE_KIND, folds_of_one_kind
from plsc.training.freeze import parameters_of
from plsc.training.optim import build_schedule
from plsc.utils.sharding import split
from plsc.utils.text import counted

FEW_STEPS = 150  # of a network that starts anew: on 280 faces 40 were no better than pixels, and 200 were
# Of a class among those that a step of Partial FC draws: characters lost 6.6 points at 16, 0.9 at 80, 0.1 at 325.
FEW_DRAWS = 200


def weak_lines(cfg: Config, steps_per_epoch: int, sets: Mapping[str, EvalSet]) -> list[str]:
    """Warn of few steps that follow from the epochs, of classes that are seldom drawn in them, and of pairs
    of few identities or sorted by kind. sets: those to evaluate on, by title."""
    lines = []
    steps = cfg.Global.total_steps(steps_per_epoch)
    if not cfg.Global.max_steps and not cfg.Global.init_from:
        share = cfg.Head.sample_rate
        draws = round(share * steps)
        if steps < FEW_STEPS:
            lines.append(
                f"{steps:,} steps are few for a network that starts anew: Global.max_steps=300 in place of "
                "Global.epochs"
            )
        if share < 1 and draws < FEW_DRAWS:
            lines.append(
                f"Head.sample_rate: {share:g} in {steps:,} steps draws a class some {draws} times; below "
                f"{FEW_DRAWS} it costs accuracy (docs/labbook.md): more steps, or a higher sample rate"
            )
    for title, data in sets.items():
        if data.pairs is not None and (few := few_identities(data.data)):
            lines.append(f"{shown(title)}: {few}")
        if data.pairs is not None and folds_of_one_kind(data.data.same):
            lines.append(f"{shown(title)}: {ONE_KIND}")
    return lines


def plan_lines(
    cfg: Config, dataset, backbone, steps_per_epoch: int, world_size: int, step: int = 0
) -> list[str]:
    """Format the plan of a run on `world_size` ranks from a step on, "plan: steps ..." and so on."""
    classes = dataset.num_classes
    shards = split(classes, world_size) if cfg.Head.sharded else [(0, classes)]
    of_rank = _either(stop - start for start, stop in shards)
    steps = cfg.Global.total_steps(steps_per_epoch)
    rate = build_schedule(cfg.LRScheduler, steps_per_epoch, steps)
    warmup = min(cfg.LRScheduler.warmup_steps(steps_per_epoch), steps - 1)
    parameters = sum(parameter.size for parameter in backbone.parameters() if not parameter.stop_gradient)
    shape = list(dataset.preprocessing.shape)
    rows = {
        "ranks": f"{world_size}, global batch {_global_batch(cfg.DataLoader.Train, world_size)}",
        "data": f"{len(dataset):,} images of {classes:,} classes, shape {shape}",
        "steps": f"{steps:,}, {steps_per_epoch:,} an epoch",
        "lr": _rates(rate, step, warmup, steps),
        "backbone": f"{type(backbone).__name__}, {parameters:,} parameters",
        "head": f"{cfg.Head.name}, {of_rank} classes per rank",
    }
    optimizer = cfg.Optimizer
    if optimizer.freeze or optimizer.freeze_norms:
        frozen = [p for p in parameters_of(backbone).values() if p.stop_gradient]
        rows["frozen"] = f"{len(frozen)} of {len(parameters_of(backbone))} parameters"
    return [f"plan: {name:9}{text}" for name, text in rows.items()]


def _rates(rate: Callable[[int], float], step: int, warmup: int, steps: int) -> str:
    """Describe the learning rates of the steps from `step` on."""
    first = f"{rate(step):.3g} at step {step + 1:,}" if step else f"{rate(0):.3g} at first"
    warm = f", {rate(warmup):.3g} after {counted(warmup, 'step')}" if step < warmup else ""
    return f"{first}{warm}, {rate(steps - 1):.3g} in the last step"


def _global_batch(train: TrainCfg, ranks: int) -> str:
    """Describe the samples of a step, and how the ranks share them."""
    samples = train.global_batch_on(ranks)
    parts = train.micro_batches_on(ranks)
    shares = _either(sum(of_rank) for of_rank in parts)
    count = len(parts[0])
    cut = f" in {count} batches of {_either(itertools.chain(*parts))}" if count > 1 else ""
    return f"{samples} ({shares} each{cut})"


def _either(sizes: Iterable[int]) -> str:
    return " or ".join(f"{size:,}" for size in sorted(set(sizes)))
