"""Build a run from its config: data, backbone, head, optimizer, evaluator and Trainer. Try it:

trainer = build_trainer(load("configs/"))
trainer.train(metrics=None)
"""

from collections.abc import Sequence
from pathlib import Path

import paddle
from paddle import nn

from plsc import distributed
from plsc.backbones.malloc import keep_freed_blocks
from plsc.config import Config
from plsc.config.run import PartCfg
from plsc.data.build import build_dataset, build_loader
from plsc.distributed.device import on_device
from plsc.errors import Mistakes, UserError, escape
from plsc.evaluation.sets import build_sets
from plsc.heads.build import build_head
from plsc.training.amp import LossScale, check_amp
from plsc.training.checkpoints import Checkpoints
from plsc.training.ema import Ema
from plsc.training.evaluator import Evaluator
from plsc.training.freeze import freeze, statistics_of
from plsc.training.load_weights import build_backbone
from plsc.training.optim import build_optimizer
from plsc.training.parallel_backbone import ParallelBackbone, layers_to_recompute
from plsc.training.part import Part
from plsc.training.trainer import Trainer
from plsc.training.watchdog import Watchdog

# Names that no Part may have, because the run's own states use them.
OWNERS = ("run", "backbone", "optimizer", "head", "margin", "evaluation", "checkpoints")


def build_trainer(
    cfg: Config,
    backbone: nn.Layer | None = None,
    watchdog: Watchdog | None = None,
    planned_ranks: int | None = None,
) -> Trainer:
    """Build a Trainer and everything that it uses. Every rank calls it, after `distributed.init`.

    Args:
        cfg: the run's config.
        backbone: Layer to train instead of Model.name's, or None.
        watchdog: notes hangs, and signals that ask the run to stop. None without signals.
        planned_ranks: world size in a dry run. None in a training. A dry run builds rank 0 alone,
            without a head.
    """
    planned = planned_ranks is not None
    rank, ranks = (0, planned_ranks) if planned else (distributed.rank(), distributed.world_size())
    seed, amp, folder = cfg.Global.seed, cfg.Global.amp, cfg.Global.output_dir
    if not planned:  # a dry run uses a CPU, even if the training will use GPUs
        check_amp(amp)
    mistakes = Mistakes()
    preprocessing, num_classes, names, seen = None, 0, None, None
    with mistakes.collected():
        dataset = build_dataset(cfg.DataLoader, seed)
        preprocessing, num_classes = dataset.preprocessing, int(dataset.num_classes)
        names, seen = dataset.class_names, dataset.identities
    if preprocessing is not None:
        with mistakes.collected():
            loader = build_loader(cfg.DataLoader, dataset, seed, rank, ranks)
    with mistakes.collected():
        sets = build_sets(cfg.DataLoader, seed, preprocessing, num_classes, names, seen)
    if preprocessing is not None:
        with mistakes.collected():
            backbone = backbone or build_backbone(cfg.Model, seed, preprocessing.shape)
            _refuse_hidden_parameters(backbone)
            if cfg.Model.sync_batchnorm and not planned:
                _synchronise_norms(backbone)
            statistics = statistics_of(backbone)
            frozen_norms = freeze(cfg.Optimizer, backbone)
            fewest = min(map(min, cfg.DataLoader.Train.micro_batches_on(ranks)))
            _refuse_lone_samples(fewest, backbone, frozen_norms)
    mistakes.raise_all()
    ema = Ema(backbone, cfg.Global.ema) if cfg.Global.ema else None
    scale = LossScale() if amp == "float16" else None
    network = ParallelBackbone(
        backbone,
        preprocessing,
        cfg.Model.embedding_size,
        seed=seed,
        batch_size=cfg.DataLoader.Train.batch_size,
        shares=loader.shares,
        recomputed=layers_to_recompute(cfg.Model.recompute, backbone),
        frozen_norms=frozen_norms,
        amp=amp,
        loss_scale=scale,
        statistics=statistics,
    )
    optimizer = build_optimizer(cfg.Optimizer, backbone)
    parts = build_parts(cfg.Parts, [part for part in (ema, scale) if part])
    head = None
    if not planned:
        if not on_device():
            # Without recomputation, fresh pages would cost a tenth of a step's time. With recomputation,
            # keeping freed blocks would use about as much memory as recomputation saves.
            keep_freed_blocks(not cfg.Model.recompute)
        rule = cfg.Optimizer.build_rule()
        head = build_head(cfg.Head, rule, num_classes, cfg.Model.embedding_size, seed, folder, amp)
    watchdog = watchdog or Watchdog()
    evaluator = Evaluator(
        cfg.DataLoader, sets, backbone, num_classes, head, ema.in_place_of_weights if ema else None, watchdog
    )
    checkpoints = Checkpoints(
        Path(folder, "checkpoints"), cfg.Checkpoint.keep, weights=ema.name if ema else "backbone"
    )
    return Trainer(cfg, loader, network, head, optimizer, evaluator, checkpoints, parts, watchdog)


def _refuse_hidden_parameters(backbone: nn.Layer) -> None:
    """Raise UserError if a Python list, tuple or dict in an attribute contains parameters to train.

    Paddle looks for layers and parameters in attributes, and not in such containers. The network would
    compute with them, but they would be neither trained nor saved.
    """
    known = {id(parameter) for parameter in backbone.parameters()}
    for path, layer in backbone.named_sublayers(include_self=True):
        for name, value in vars(layer).items():
            items = [*value.values()] if isinstance(value, dict) else value
            if not isinstance(items, list | tuple):
                continue
            parameters = [each for item in items if isinstance(item, nn.Layer) for each in item.parameters()]
            parameters += [item for item in items if paddle.is_tensor(item) and item.is_leaf]
            if any(id(each) not in known and not each.stop_gradient for each in parameters):
                where = f"{path}.{name}" if path else name
                raise UserError(
                    f"its attribute {where} is a Python {type(value).__name__} with parameters that "
                    "Paddle does not see, so they would be neither trained nor saved; use "
                    "paddle.nn.LayerList, LayerDict or ParameterList",
                    key="Model.name",
                )


def _refuse_lone_samples(fewest: int, backbone: nn.Layer, frozen_norms: list[nn.Layer]) -> None:
    """Raise UserError if a batch norm would see a batch with one sample, which makes all embeddings the same.

    Args:
        fewest: samples in the smallest batch.
        backbone: the layer to train.
        frozen_norms: layers that stay in evaluation mode during training.
    """
    norms = [layer for layer in backbone.sublayers() if "BatchNorm" in type(layer).__name__]
    if fewest < 2 and any(layer not in frozen_norms for layer in norms):
        raise UserError(
            "must be at least 2 for a network with batch norm, which learns nothing from a single sample",
            key="DataLoader.Train.batch_size",
        )


def _synchronise_norms(backbone: nn.Layer) -> None:
    """Replace Paddle's batch norm layers in a backbone by layers that compute statistics over all ranks.

    Raises UserError on a CPU.
    """
    if not on_device():
        raise UserError(
            "is true, but Paddle supports it on devices only; set it to false on CPUs",
            key="Model.sync_batchnorm",
        )
    for parent in backbone.sublayers(include_self=True):
        for name, layer in list(parent.named_children()):
            if type(layer) in (nn.BatchNorm1D, nn.BatchNorm2D):
                setattr(parent, name, nn.SyncBatchNorm.convert_sync_batchnorm(layer))


def build_parts(sections: Sequence[PartCfg], core: Sequence[Part]) -> list[Part]:
    """Build the parts in the section Parts, and list them after plsc's own parts.

    Raises UserError if a part's name is used by another state, and if a part defines no method of Part, for
    example because it misspells `loss` as `losses`.

    Args:
        sections: the section Parts's entries.
        core: plsc's own parts.
    """
    parts = [*core]
    for number, section in enumerate(sections):
        try:
            part = section.build()
        except UserError as error:
            raise type(error)(error.text, error.key or f"Parts.{number}") from error
        name = getattr(part, "name", "")
        if name in ("", *OWNERS, *(other.name for other in parts)):
            raise UserError(
                f"{section.name} must have a name of its own for its state and its loss (got "
                f"'{escape(name)}'); set the class's name, or name a part once",
                key=f"Parts.{number}",
            )
        methods = [method for method in vars(Part) if not method.startswith("_") and method != "numbers"]
        if all(getattr(type(part), method) is getattr(Part, method) for method in methods):
            raise UserError(
                f"{section.name} has no effect: it defines none of {', '.join(methods)}",
                key=f"Parts.{number}",
            )
        parts.append(part)
    return parts
