"""Build a run from its config: data, backbone, head, optimizer, evaluator and Trainer.

trainer = build_trainer(load("configs/"))
trainer.train(metrics=None)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import paddle
from paddle import nn

from plsc import distributed
from plsc.config import Config
from plsc.data.build import build_dataset
from plsc.data.dataset import Dataset, check_labels, class_names
from plsc.data.loader import Loader
from plsc.distributed.device import on_device
from plsc.distributed.guard import Guard
from plsc.errors import UserError, shown
from plsc.evaluation.sets import EvalSet
from plsc.training import optim
from plsc.training.build_head import build_head, build_margin, build_rule
from plsc.training.evaluator import Evaluator, build_sets
from plsc.training.groups import freeze, settings_of, statistics_of
from plsc.training.mixed_precision import check_amp, check_layers
from plsc.training.network import Network, layers_to_recompute
from plsc.training.parts.checkpoints import Checkpoints
from plsc.training.parts.divergence import Divergence
from plsc.training.parts.dump import DumpWriter
from plsc.training.parts.ema import Ema
from plsc.training.parts.evaluation import Evaluation
from plsc.training.parts.log import Log
from plsc.training.parts.loss_scale import LossScale
from plsc.training.parts.part import Part
from plsc.training.parts.rollback import Rollback
from plsc.training.parts.signals import Signals
from plsc.training.resume import build_backbone
from plsc.training.start import make_folder
from plsc.training.trainer import Rates, Trainer
from plsc.utils.logging import warn
from plsc.utils.malloc import keep_freed_blocks, return_large_blocks
from plsc.utils.memory import refuse_beyond_memory

# The names of the other states of a run.
OWNERS = (
    *("run", "backbone", "optimizer", "head", "margin"),
    *(part.name for part in (Divergence, Rollback, Log, Evaluation, Checkpoints)),
)


class Prepared(NamedTuple):
    """What a run needs before its ranks compute or share anything: the dry run prepares the same, and so
    refuses the same.

    still: layers in evaluation mode. sets: to evaluate on, by title. features: the parts that the config asks
    for.
    """

    dataset: Dataset
    loader: Loader
    backbone: paddle.nn.Layer
    statistics: list[paddle.Tensor]
    optimizer: optim.BackboneOptimizer
    still: list[paddle.nn.Layer]
    recomputed: list[paddle.nn.Layer]
    sets: dict[str, EvalSet]
    features: list[Part]


def prepare(
    cfg: Config,
    rank: int,
    ranks: int,
    backbone: paddle.nn.Layer | None = None,
    alone: bool = False,
) -> Prepared:
    """Prepare the run of a config on one of its ranks. UserError for what cannot be trained.

    Args:
        backbone: as of `build_trainer`.
        alone: without the other ranks, as for a dry run.
    """
    if not alone:  # a dry run of a training on GPUs is on a CPU
        check_amp(cfg.Global.amp)
    build_margin(cfg.Head)  # for what it refuses, before the centres take memory
    dataset = build_training_set(cfg)
    loader = build_loader(cfg, dataset, rank, ranks)
    backbone = backbone or build_backbone(cfg.Model, cfg.Global.seed, dataset.preprocessing.shape)
    check_layers(cfg.Global.amp, backbone)
    if cfg.Model.sync_batchnorm and not alone:
        _synchronise_norms(backbone)
    statistics = statistics_of(backbone)
    optimizer, still = build_optimizer(cfg, backbone)
    recomputed = layers_to_recompute(cfg.Model.recompute, backbone)
    sets = build_evaluation_sets(cfg, dataset)
    features = build_features(cfg, dataset, backbone)
    return Prepared(dataset, loader, backbone, statistics, optimizer, still, recomputed, sets, features)


def _synchronise_norms(backbone: paddle.nn.Layer) -> None:
    """Let Paddle's batch norm layers inside a backbone take their statistics over all ranks."""
    if not on_device():
        raise UserError(
            "Model.sync_batchnorm: true, but Paddle has it for devices alone; set it to false on CPUs"
        )
    for parent in backbone.sublayers(include_self=True):
        for name, layer in list(parent.named_children()):
            if type(layer) in (nn.BatchNorm1D, nn.BatchNorm2D):
                setattr(parent, name, nn.SyncBatchNorm.convert_sync_batchnorm(layer))


def build_features(cfg: Config, dataset: Dataset, backbone: paddle.nn.Layer) -> list[Part]:
    """Build the parts that the config asks for, in the order in which they are called; all other parts come
    after them."""
    amp = cfg.Global.amp
    average = cfg.Global.ema
    parts = [
        Ema(backbone, average.decay, average.every) if average else None,
        LossScale() if amp and amp.dtype == "float16" else None,
    ]
    parts = [part for part in parts if part]
    return [*parts, *build_own_parts(cfg, {part.name for part in parts})]


def build_own_parts(cfg: Config, names: set[str]) -> list[Part]:
    """Build the parts that the section Parts names. UserError for one that has the name of a state that is
    taken."""
    taken = {"", *names, *OWNERS}
    parts = []
    for number, section in enumerate(cfg.Parts):
        part = section.build()
        if part.name in taken:
            raise UserError(
                f"{section.name} must have a name of its own for its state and its loss (got '{shown(part.name)}'); set the "
                "class's name, or name a part once",
                key=f"Parts.{number}",
            )
        taken.add(part.name)
        parts.append(part)
    return parts


def build_trainer(
    cfg: Config,
    backbone: paddle.nn.Layer | None = None,
    signals: Guard | None = None,
) -> Trainer:
    """Build the Trainer of a config with all its parts. Every rank calls it, after `distributed.init`.

    Args:
        backbone: a Layer to train instead of Model.name's.
        signals: notes signals that ask the run to stop; None: there are none.
    """
    ranks = distributed.rank(), distributed.world_size()
    ready = prepare(cfg, *ranks, backbone)
    if not on_device():
        # Recomputation saves about what malloc would keep; without it fresh pages cost a tenth of a step.
        return_large_blocks() if cfg.Model.recompute else keep_freed_blocks()
    dataset, loader, backbone = ready.dataset, ready.loader, ready.backbone
    make_folder(Path(cfg.Global.output_dir), "Global.output_dir")  # a head's bank may have its file there
    head = build_head(
        cfg.Head,
        build_rule(cfg.Optimizer),
        dataset.num_classes,
        cfg.Model.embedding_size,
        cfg.Global.seed,
        cfg.Global.output_dir,
        cfg.Global.amp,
    )
    ema = next((part for part in ready.features if isinstance(part, Ema)), None)
    scale = next((part for part in ready.features if isinstance(part, LossScale)), None)
    root = Path(cfg.Global.output_dir, "checkpoints")
    evaluator = Evaluator(
        cfg.DataLoader.Eval,
        ready.sets,
        backbone,
        dataset.num_classes,
        head,
        ema.in_place_of_weights if ema else None,
        amp=cfg.Global.amp_of_prediction,
    )
    rollback = Rollback(cfg.Global.rollbacks, root)
    parts = [
        *ready.features,
        Divergence(cfg.Global.max_skipped, DumpWriter(f"{cfg.Global.output_dir}/diverged", dataset.name)),
        rollback,
        Log(loader, cfg.Global.log_every),
        Evaluation(evaluator, cfg.Global.eval_every, cfg.Global.eval_every_steps),
        Checkpoints(
            root,
            evaluator,
            every=cfg.Checkpoint.every_steps,
            keep=cfg.Checkpoint.keep,
            weights=ema.name if ema else "backbone",
            keeps_way_back=cfg.Global.rollbacks > 0,
            on_disk=cfg.Head.bank == "disk",
        ),
        Signals(signals or Guard()),
    ]
    network = Network(
        backbone,
        dataset.preprocessing,
        cfg.Model.embedding_size,
        seed=cfg.Global.seed,
        batch_size=cfg.DataLoader.Train.batch_size,
        shares=loader.shares,
        recomputed=ready.recomputed,
        still=ready.still,
        amp=cfg.Global.amp,
        scaler=scale,
        statistics=ready.statistics,
    )
    rates = build_rates(cfg, loader.steps_per_epoch, rollback)
    return Trainer(cfg, dataset, loader, network, head, ready.optimizer, rates, parts)


def build_rates(cfg: Config, steps_per_epoch: int, rollback: Rollback) -> Callable[[int], Rates]:
    """Build the function step -> learning rates of backbone and head, which a rollback lowers."""
    schedule = optim.build_schedule(cfg.LRScheduler, steps_per_epoch, cfg.Global.total_steps(steps_per_epoch))
    head_scale = cfg.Optimizer.head_lr_scale

    def rates(step: int) -> Rates:
        rate = schedule(step) * rollback.factor
        return Rates(rate, rate * head_scale)

    return rates


def build_training_set(cfg: Config) -> Dataset:
    """Build the data set to train on; UserError if it contradicts the config or has fewer than two
    classes."""
    dataset = build_dataset(cfg.DataLoader, cfg.Global.seed)
    check_labels(dataset)
    train = cfg.DataLoader.Train
    for key, has in (("num_classes", dataset.num_classes), ("num_samples", len(dataset))):
        wanted = getattr(train, key)
        if wanted not in (None, has):
            raise UserError(
                f"the data has {has} {key[4:]} (got {wanted}); leave the key out to take what the data has",
                key=f"DataLoader.Train.{key}",
            )
    hint = getattr(dataset, "nested_hint", "")
    if dataset.num_classes < 2:
        text = "has 1 class, and nothing to tell it from; it needs at least 2"
        raise UserError(f"{text}; {hint}" if hint else text, key="DataLoader.Train.dataset")
    if hint:
        warn(f"DataLoader.Train.dataset: {hint}")
    samples = min(train.batch_size, len(dataset))
    refuse_beyond_memory(
        4 * samples * math.prod(dataset.preprocessing.shape),  # float32, the network's input
        f"DataLoader.Train.batch_size: {samples} samples {dataset.preprocessing.samples}",
        "lower it, or the size of the images",
    )
    return dataset


def build_evaluation_sets(cfg: Config, dataset: Dataset) -> dict[str, EvalSet]:
    """Build the sets of DataLoader.Eval; UserError for one that does not fit the data set to train on."""
    seen = getattr(dataset, "identities", None)
    return build_sets(cfg, dataset.preprocessing, dataset.num_classes, seen, class_names(dataset))


def build_loader(cfg: Config, dataset: Dataset, rank: int, world_size: int) -> Loader:
    """Build the loader of one rank. UserError if the global batch or the ranks do not fit the data."""
    train = cfg.DataLoader.Train
    global_batch = train.global_batch_on(world_size)
    _check_sizes(cfg, len(dataset), dataset.num_classes, world_size)
    return Loader(
        dataset,
        global_batch,
        rank,
        world_size,
        cfg.Global.seed,
        train.num_workers,
        train.max_corrupt,
        planned_ranks=train.planned_ranks if train.keep_global_batch else None,
    )


def _check_sizes(cfg: Config, samples: int, classes: int, ranks: int) -> None:
    """Raise UserError for a global batch of more samples than an epoch has, and for more ranks than classes
    to share out."""
    train = cfg.DataLoader.Train
    batch = train.global_batch_on(ranks)
    if batch > samples:
        key = "DataLoader.Train.global_batch" if train.keep_global_batch else "DataLoader.Train.batch_size"
        accumulated = f" x accumulate {train.accumulate}" if train.accumulate > 1 else ""
        size = f"{batch:,}"
        if not train.keep_global_batch:
            size = f"{train.batch_size:,}{accumulated} x {ranks} rank{'s' * (ranks > 1)}"
        where = "" if cfg.source(key) == "default" else f"{cfg.source(key)}: "
        raise UserError(
            f"{where}{key}: {size} is more than the {samples:,} samples of an epoch; lower it"
            + ", or start fewer ranks" * (ranks > 1 and not train.keep_global_batch)
        )
    if cfg.Head.sharded and ranks > classes:
        raise UserError(
            f"{ranks} ranks are more than the {classes} class{'es' * (classes > 1)} that they share out; start {classes} or fewer"
        )


def build_optimizer(
    cfg: Config, backbone: paddle.nn.Layer
) -> tuple[optim.BackboneOptimizer, list[paddle.nn.Layer]]:
    """Build the optimizer, and list the layers that are in evaluation mode in training."""
    settings = settings_of(cfg.Optimizer, backbone)
    still = freeze(cfg.Optimizer, backbone, settings)
    return optim.build_optimizer(cfg.Optimizer, backbone, settings), still
