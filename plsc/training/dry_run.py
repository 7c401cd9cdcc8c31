"""Describe a run in a few lines before it starts, or plan a run without training it.

Try it: `plsc train -c configs/ --dry-run`.
"""

import itertools
import math
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from plsc.config import Config
from plsc.distributed import device, environment
from plsc.errors import MissingFileError, Mistakes
from plsc.heads.build import build_margin
from plsc.heads.memory import default_budget, rows_bytes
from plsc.heads.optimizer import check_rule
from plsc.training.build import build_trainer
from plsc.training.loggers import check_packages
from plsc.training.run_folder import should_resume
from plsc.training.trainer import Trainer
from plsc.utils.sharding import split
from plsc.utils.text import gigabytes, plural

_WITHOUT_DATA = (
    "--dry-run: without the data, plan with N classes by -o DataLoader.Eval.dataset=null "
    "DataLoader.Eval.more={} 'DataLoader.Train.dataset={name: Synthetic, num_classes: N, "
    "image_shape: [3, 112, 112]}'"
)


def dry_run(cfg: Config, ranks: int | None = None, model: Any = None) -> tuple[str, bool]:
    """Plan a run without training it.

    Args:
        cfg: the run's config.
        ranks: world size to plan for. None is the world size in this launch.
        model: Layer to train instead of the config's, or None.

    Returns the resolved config followed by the plan, and whether this machine has room for the run.

    Raises UserError if the config or the data are wrong.
    """
    ranks = ranks or environment.world_size_from_env()
    mistakes = Mistakes()
    with mistakes.collected():
        cfg.check_ranks(ranks)
    with mistakes.collected():
        check_packages(cfg.Global.loggers)
    with mistakes.collected():
        try:
            cfg.check_data()
        except MissingFileError as error:
            raise MissingFileError(f"{error}\n{_WITHOUT_DATA}") from error
    mistakes.raise_all()
    kind = device.decide(cfg.Global.device, [device.why_none(cfg.Global.device)])
    device.use(environment.CPU)
    with mistakes.collected():
        run = build_trainer(cfg, model, planned_ranks=ranks)
    with mistakes.collected():
        build_margin(cfg.Head)  # called for its checks, since a plan has no head
    with mistakes.collected():
        check_rule(cfg.Optimizer.build_rule())
    mistakes.raise_all()
    plan = plan_lines(run)
    sizes, most = byte_lines(run, in_memory=kind == environment.CPU or cfg.Head.bank != "device")
    plan += sizes
    if kind == environment.CPU:
        plan += crowd_lines(ranks)
    if cfg.Global.init_from and not should_resume(cfg.Global):
        plan.append(f"plan: start    the weights of {cfg.Global.init_from}, and its centres by name")
    fits = run.dataset.num_classes <= most
    if kind == environment.CPU and cfg.Global.amp == "float16":
        plan.append(
            "plan: refused  Global.amp is float16, which a CPU does not train in; set bfloat16 or null here"
        )
        return "\n".join([cfg.to_yaml(), *plan]), False
    if not fits:
        plan.append(f"plan: too big  {run.dataset.num_classes:,} classes; {', or '.join(_remedies(cfg))}")
    return "\n".join([cfg.to_yaml(), *plan]), fits


def _remedies(cfg: Config) -> list[str]:
    """List the measures that make room for more classes, without those that the config already has."""
    head = cfg.Head
    remedies = []
    if head.bank != "disk":
        remedies.append("set Head.bank=disk")
    if head.bank_dtype != "bfloat16":
        remedies.append(
            "set Head.bank_dtype=bfloat16" + ("" if head.bank != "device" else " with Head.bank=host")
        )
    if cfg.Checkpoint.keep > 1:
        remedies.append("lower Checkpoint.keep")
    return [*remedies, "take a larger disk", "take more machines"]


def plan_lines(run: Trainer) -> list[str]:
    """Return the lines that describe a run, such as "plan: steps ..."."""
    cfg = run.cfg
    ranks = run.loader.world_size
    classes = run.dataset.num_classes
    shards = split(classes, ranks) if cfg.Head.sharded else [(0, classes)]
    parts = cfg.DataLoader.Train.micro_batches_on(ranks)
    count = len(parts[0])
    cut = f" in {count} batches of {_either(itertools.chain(*parts))}" if count > 1 else ""
    trained = sum(parameter.size for parameter in run.optimizer.parameters)
    first, last = (f"{run.schedule(step):.3g}" for step in (run.step, run.total_steps - 1))
    begin = f"{first} at first"
    if run.lr_before is not None:
        begin = f"{first} in step {run.step + 1:,} ({run.lr_before:.3g} in the step before)"
    rows = {
        "ranks": f"{ranks}, global batch {run.loader.global_batch} ({_either(map(sum, parts))} each{cut})",
        "data": f"{len(run.dataset):,} images of {classes:,} classes, shape "
        f"{list(run.dataset.preprocessing.shape)}",
        "steps": f"{run.total_steps:,}, {run.steps_per_epoch:,} an epoch",
        "lr": f"{begin}, {last} in the last step{_still_warming(run)}",
        "backbone": f"{type(run.backbone).__name__}, {trained:,} parameters",
        "head": f"{cfg.Head.name}, {_either(stop - start for start, stop in shards)} classes per rank",
    }
    return [f"plan: {name:9}{text}" for name, text in rows.items()]


def _still_warming(run: Trainer) -> str:
    """Return a note if the run ends before the learning rate's warm-up does."""
    warmup = run.cfg.LRScheduler.warmup_epochs
    if round(warmup * run.steps_per_epoch) < run.total_steps:
        return ""
    return f", which is in the warm-up of {warmup:g} epochs: the full rate is never reached"


def crowd_lines(ranks: int) -> list[str]:
    """Return a warning line if this machine has more ranks than processors, otherwise no line."""
    processors = len(os.sched_getaffinity(0))
    crowded = f"plan: slow     {ranks} ranks share {plural(processors, 'processor')} of this machine"
    return [crowded] if ranks > processors else []


def byte_lines(run: Trainer, in_memory: bool) -> tuple[list[str], float]:
    """Compute the bytes that a run uses.

    Args:
        run: the planned run.
        in_memory: whether all ranks' banks are in this machine's memory or on its disk. It is False for
            banks on a device, whose free memory is not known.

    Returns lines that show the bytes, and the most classes that this machine has room for.
    """
    cfg = run.cfg
    ranks = run.loader.world_size
    head = cfg.Head
    size = cfg.Model.embedding_size
    classes = run.dataset.num_classes
    shard = split(classes, ranks)[0][1] if head.sharded else classes
    samples = run.loader.global_batch if head.sharded else cfg.DataLoader.Train.batch_size
    selected = min(shard, round(head.sample_rate * shard) + samples) if head.sample_rate < 1 else shard
    arrays = 1 + len(cfg.Optimizer.build_rule().moments)
    trained = sum(parameter.size for parameter in run.optimizer.parameters)
    saved = (2 if cfg.Global.ema else 1) * sum(tensor.size for tensor in run.backbone.state_dict().values())
    saved += (1 if cfg.Optimizer.name in ("Momentum", "LARS") else 2) * trained  # at most, for a user's class
    network = 4 * (saved + trained)
    gradients = 4 * selected * head.row_size(size)
    budget = int(head.logits_budget_mb * 10**6) if head.logits_budget_mb else default_budget()
    # Float32 logits and exponentials for all centres of the step. If they exceed the budget, the head
    # computes them in blocks.
    logits = min(budget, 8 * samples * selected * head.row_size(size) // size)
    bank = rows_bytes(head, arrays, shard, size)
    rows = rows_bytes(head, arrays, classes, size)
    checkpoint = 4 * saved + rows
    # The checkpoints that are kept, the best one, and the one that is being written.
    checkpoints = cfg.Checkpoint.keep + (cfg.DataLoader.Eval.dataset is not None) + 1
    on_disk = head.bank == "disk"
    where = " on the disk" if on_disk else ""
    of_rank = (
        f"network {gigabytes(network)}, head {gigabytes(gradients + logits)}, bank {gigabytes(bank)}{where}"
    )
    beside = f"checkpoint {gigabytes(checkpoint)}, at most {checkpoints} at a time"
    most = math.inf
    lines = [f"plan: bytes    of a rank: {of_rank}, and the activations; {beside}"]
    if in_memory:
        free = environment.available_bytes() / ranks - network - budget
        memory = free / (gradients + (0 if on_disk else bank))
        stored = checkpoints * rows + (ranks * bank if on_disk else 0)
        folder = Path(cfg.Global.output_dir).absolute()
        disk = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.is_dir()))
        most = max(0, int(classes * min(memory, (disk.free - 4 * checkpoints * saved) / stored)))
        lines.append(f"plan: room     {most:,} classes at most fit this machine")
    return lines, most


def _either(sizes: Iterable[int]) -> str:
    return " or ".join(f"{size:,}" for size in sorted(set(sizes)))
