"""Build a run from its config: data, backbone, head, optimizer, evaluator and Trainer.

trainer = build_trainer(load("configs/"))
trainer.train(metrics=None)
"""

from functools import partial
from pathlib import Path

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
from plsc.heads.softmax import SoftmaxHead
from plsc.training import optim
from plsc.training.amp import LossScale, check_amp
from plsc.training.build_head import build_head, build_margin, build_rule
from plsc.training.checkpoints import Checkpoints
from plsc.training.ema import Ema
from plsc.training.evaluator import Evaluator, build_sets
from plsc.training.freeze import freeze, statistics_of
from plsc.training.network import Network, layers_to_recompute
from plsc.training.part import Part
from plsc.training.resume import build_backbone
from plsc.training.start import make_folder
from plsc.training.trainer import Trainer
from plsc.utils.malloc import keep_freed_blocks, return_large_blocks

# The names of the other states of a run.
OWNERS = ("run", "backbone", "optimizer", "head", "margin", "evaluation", "checkpoints")


def build_trainer(
    cfg: Config,
    backbone: paddle.nn.Layer | None = None,
    guard: Guard | None = None,
    planned_ranks: int | None = None,
) -> Trainer:
    """Build the Trainer of a config with all that it needs. Every rank calls it, after `distributed.init`.

    Args:
        backbone: a Layer to train instead of Model.name's.
        guard: notes signals that ask the run to stop, and hangs; None: there are none.
        planned_ranks: build rank 0 of so many, without the others and without a head, to plan the run.
    """
    planned = planned_ranks is not None
    rank, ranks = (0, planned_ranks) if planned else (distributed.rank(), distributed.world_size())
    amp = cfg.Global.amp
    if not planned:  # a dry run of a training on GPUs is on a CPU
        check_amp(amp)
    build_margin(cfg.Head)  # for what it refuses, before the centres take memory
    dataset = build_training_set(cfg)
    loader = build_loader(cfg, dataset, rank, ranks)
    backbone = backbone or build_backbone(cfg.Model, cfg.Global.seed, dataset.preprocessing.shape)
    if cfg.Model.sync_batchnorm and not planned:
        _synchronise_norms(backbone)
    statistics = statistics_of(backbone)
    frozen_norms = freeze(cfg.Optimizer, backbone)
    optimizer = optim.build_optimizer(cfg.Optimizer, backbone)
    _refuse_lone_samples(cfg, backbone, frozen_norms, ranks)
    recomputed = layers_to_recompute(cfg.Model.recompute, backbone)
    sets = build_sets(
        cfg,
        dataset.preprocessing,
        dataset.num_classes,
        seen=getattr(dataset, "identities", None),
        names=class_names(dataset),
    )
    parts = build_parts(cfg, backbone)
    ema = next((part for part in parts if isinstance(part, Ema)), None)
    scale = next((part for part in parts if isinstance(part, LossScale)), None)
    head = None if planned else _build_head(cfg, dataset.num_classes)
    evaluator = Evaluator(
        cfg.DataLoader,
        sets,
        backbone,
        dataset.num_classes,
        head,
        ema.in_place_of_weights if ema else None,
    )
    network = Network(
        backbone,
        dataset.preprocessing,
        cfg.Model.embedding_size,
        seed=cfg.Global.seed,
        batch_size=cfg.DataLoader.Train.batch_size,
        shares=loader.shares,
        recomputed=recomputed,
        frozen_norms=frozen_norms,
        amp=amp,
        loss_scale=scale,
        statistics=statistics,
    )
    per_epoch = loader.steps_per_epoch
    return Trainer(
        cfg,
        dataset,
        loader,
        network,
        head,
        optimizer,
        partial(
            cfg.LRScheduler.rate, steps_per_epoch=per_epoch, total_steps=cfg.Global.total_steps(per_epoch)
        ),
        evaluator,
        Checkpoints(
            Path(cfg.Global.output_dir, "checkpoints"),
            cfg.Checkpoint.keep,
            weights=ema.name if ema else "backbone",
        ),
        parts,
        guard or Guard(),
    )


def _build_head(cfg: Config, num_classes: int) -> SoftmaxHead:
    """Build the head of a training, in a process that is about to train."""
    if not on_device():
        # Recomputation saves about what malloc would keep; without it fresh pages cost a tenth of a step.
        return_large_blocks() if cfg.Model.recompute else keep_freed_blocks()
    make_folder(Path(cfg.Global.output_dir), "Global.output_dir")  # a head's bank may have its file there
    return build_head(
        cfg.Head,
        build_rule(cfg.Optimizer),
        num_classes,
        cfg.Model.embedding_size,
        cfg.Global.seed,
        cfg.Global.output_dir,
        cfg.Global.amp,
    )


def _refuse_lone_samples(
    cfg: Config, backbone: paddle.nn.Layer, frozen_norms: list[paddle.nn.Layer], ranks: int
) -> None:
    """Refuse by UserError a batch of one sample for a batch norm, which would make all embeddings the
    same."""
    lone = min(map(min, cfg.DataLoader.Train.micro_batches_on(ranks))) < 2
    norms = [layer for layer in backbone.sublayers() if "BatchNorm" in type(layer).__name__]
    if lone and any(layer not in frozen_norms for layer in norms):
        raise UserError(
            "must be at least 2 for a network with batch norm, which learns nothing from a single sample",
            key="DataLoader.Train.batch_size",
        )


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


def build_parts(cfg: Config, backbone: paddle.nn.Layer) -> list[Part]:
    """Build the parts of a run. UserError for one of the section Parts that has the name of a state that is
    taken."""
    parts: list[Part] = []
    if cfg.Global.ema:
        parts.append(Ema(backbone, cfg.Global.ema.decay))
    if cfg.Global.amp and cfg.Global.amp.dtype == "float16":
        parts.append(LossScale())
    for number, section in enumerate(cfg.Parts):
        part = section.build()
        name = getattr(part, "name", "")
        if name in ("", *OWNERS, *(other.name for other in parts)):
            raise UserError(
                f"{section.name} must have a name of its own for its state and its loss (got "
                f"'{shown(name)}'); set the class's name, or name a part once",
                key=f"Parts.{number}",
            )
        parts.append(part)
    return parts


def build_training_set(cfg: Config) -> Dataset:
    """Build the data set to train on; UserError if it has fewer than two classes."""
    dataset = build_dataset(cfg.DataLoader, cfg.Global.seed)
    check_labels(dataset)
    if dataset.num_classes < 2:
        raise UserError(
            "has 1 class, and nothing to tell it from; it needs at least 2", key="DataLoader.Train.dataset"
        )
    return dataset


def build_loader(cfg: Config, dataset: Dataset, rank: int, world_size: int) -> Loader:
    """Build the loader of one rank. UserError if the global batch or the ranks do not fit the data."""
    train = cfg.DataLoader.Train
    global_batch = train.global_batch_on(world_size)
    samples = len(dataset)
    if global_batch > samples:
        key = "global_batch" if train.global_batch else "batch_size"
        each = "" if train.global_batch or world_size == 1 else f"{train.batch_size:,} x {world_size} ranks: "
        raise UserError(
            f"{each}{global_batch:,} samples of a step are more than the {samples:,} of an epoch; lower it",
            key=f"DataLoader.Train.{key}",
        )
    return Loader(
        dataset,
        global_batch,
        rank,
        world_size,
        cfg.Global.seed,
        train.num_workers,
        micro_batches=-(-global_batch // train.batch_size),
    )
