"""Build backbone and head of a config, and load a checkpoint's weights into them.

Any number of ranks reads a checkpoint of any other. Training, testing and exporting share this. To look at a
checkpoint: `plsc ckpt inspect output/checkpoints/step-00000656`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any

import paddle

from plsc.backbones.config import BACKBONES, ModelCfg
from plsc.checkpoint import store
from plsc.config import Config
from plsc.data.dataset import Dataset, misnumbered_class
from plsc.errors import UserError
from plsc.heads.softmax import SoftmaxHead
from plsc.training.build_head import build_head, build_rule
from plsc.utils.logging import warn
from plsc.utils.memory import refuse_beyond_memory
from plsc.utils.section import affects_training

_ROWS_AT_ONCE = 65_536  # of the centres: no second copy of the shard in memory


def build_backbone(section: ModelCfg, seed: int, image_shape: tuple[int, ...]) -> paddle.nn.Layer:
    """Build the backbone with its initial weights, the same on every rank."""
    if section.name in BACKBONES.builtin:
        _refuse_impossible(section, image_shape)
    paddle.seed(seed)
    return section.build(embedding_size=section.embedding_size, image_shape=image_shape)


def _refuse_impossible(section: ModelCfg, image_shape: tuple[int, ...]) -> None:
    """Raise UserError if the weights of a built-in network do not fit the memory."""
    what = f"Model: the weights of {section.name} for images {list(image_shape)}"
    remedy = "lower its widths, Model.embedding_size or the size of the images"
    try:
        with paddle.LazyGuard(), paddle.utils.unique_name.guard():  # of weights there are shapes alone
            backbone = section.build(embedding_size=section.embedding_size, image_shape=image_shape)
    except IndexError:  # where Paddle makes 32 bits of a shape
        raise UserError(f"{what}: a matrix would have a side of more than 2^31 numbers; {remedy}") from None
    refuse_beyond_memory(4 * sum(math.prod(weight.shape) for weight in backbone.parameters()), what, remedy)


def load_backbone(backbone: paddle.nn.Layer, saved: store.Checkpoint) -> None:
    """Load a checkpoint's weights, those to use, into `backbone`; UserError if they are of another
    network."""
    config = saved.path.parent.parent / "config.yaml"
    remedy = "the Model section must be that of the run that made it" + f": -c {config}" * config.is_file()
    own = backbone.state_dict()
    saved.check_matches(saved.num_classes, saved.embedding_size, backbone=own, remedy=remedy)
    for name, array in saved.weights().items():
        own[name].set_value(array)


# They affect the training, and `refuse_other_run` compares them.
_COMPARED_BY_STATE = ("Global.seed", "Head.name", "DataLoader.Train.batch_size")


def changed_keys(cfg: Config, saved: store.Checkpoint) -> list[str]:
    """List the keys that affect the training and differ from a checkpoint's: "Head.margin 0.3 (was 0.5)"
    each. A key that the checkpoint's config lacks, because it is older than the key, counts as its
    default."""
    if not saved.config:
        return []
    ours, theirs = dict(_values(cfg.plain())), dict(_values(saved.config))
    before = {**dict(_values(Config().plain())), **theirs}
    return [
        f"{key} {_format_value(ours, key)} (was {_format_value(before, key)})"
        for key in {**theirs, **ours}
        if ours.get(key) != before.get(key)
        and affects_training(Config, key.split("."))
        and key not in _COMPARED_BY_STATE
    ]


def warn_of_changed_keys(cfg: Config, saved: store.Checkpoint) -> None:
    """Warn where a run goes on with another config."""
    if changed := changed_keys(cfg, saved):
        warn(f"this run has other keys than the checkpoint's: {', '.join(changed)}")


def _values(section: dict, above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, dict):
            yield from _values(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _format_value(values: dict[str, Any], key: str) -> str:
    return str(values[key]) if values.get(key) is not None else "null"


def refuse_other_run(
    cfg: Config,
    saved: store.Checkpoint,
    ours: dict[str, Any],
    owners: Collection[str],
    data: Dataset,
) -> None:
    """Refuse by UserError a checkpoint of another run; warn of differences that change only the order of the
    data.

    Args:
        ours: the state of this run, see Trainer.state_dict. owners: of the states that it takes over.
        data: the data set that it trains on.
    """
    where = f"checkpoint {saved.path.name}"
    anew = "or start a new run with Global.init_from in another Global.output_dir"
    theirs = saved.plain("run")
    # These must match, and the shapes of the arrays do not show it. What was frozen has no optimizer state.
    optimizer = saved.config.get("Optimizer", {})
    alike = {
        "optimizer": (theirs.get("optimizer"), ours["optimizer"]),
        "class centres' optimizer": (theirs.get("head_optimizer"), ours["head_optimizer"]),
        "head": (theirs.get("head"), ours["head"]),
        "preprocessing": (saved.preprocessing, data.preprocessing),
        "Optimizer.freeze": (optimizer.get("freeze", []), cfg.Optimizer.freeze),
        "Optimizer.freeze_norms": (optimizer.get("freeze_norms", False), cfg.Optimizer.freeze_norms),
    }
    for what, (there, here) in alike.items():
        if there != here:
            raise UserError(
                f"{where} was made with the {what} {there}, this run has {here}: resume with the same, {anew}"
            )
    if theirs["global_batch"] != ours["global_batch"]:
        raise UserError(
            f"{where} was made with a global batch of {theirs['global_batch']}, this run has {ours['global_batch']}: set "
            f"DataLoader.Train.global_batch={theirs['global_batch']}, or leave the key out"
        )
    for owner in saved.manifest.state.keys() - owners:
        warn(f"{where} has a state of '{owner}', which this run is without: it is left out from now on")
    # Random numbers and the order of the data depend on these.
    order = {
        "seed": (theirs["seed"], ours["seed"]),
        "steps_per_epoch": (theirs["steps_per_epoch"], ours["steps_per_epoch"]),
    }
    for what, (there, here) in order.items():
        if there != here:
            warn(
                f"{where} was made with {what} {there}, this run has {here}: the run goes on with other random numbers "
                "and data than it would have had"
            )


def refuse_other_classes(saved: store.Checkpoint, data: Dataset) -> None:
    """Refuse by UserError a data set whose classes have other numbers than a checkpoint's."""
    if wrong := misnumbered_class(saved.classes(), data, strangers=True):
        raise UserError(
            f"DataLoader.Train.dataset: {wrong} in checkpoint {saved.path.name}: resume with the same classes, or start a new run with "
            "Global.init_from, which finds them by name, in another Global.output_dir"
        )


def load_rows(head: SoftmaxHead, saved: store.Checkpoint) -> None:
    """Load this rank's rows of a checkpoint of any world size into `head`; UserError if they are of another
    head."""
    state, shard = head.bank.state(), head.shard
    saved.check_matches(shard.num_classes, head.bank.width, head=state)
    for start in range(shard.start, shard.stop, _ROWS_AT_ONCE):
        rows = saved.head(start, min(start + _ROWS_AT_ONCE, shard.stop))
        head.bank.load_rows(start - shard.start, rows)


def build_saved_head(cfg: Config, saved: store.Checkpoint) -> SoftmaxHead:
    """Build the config's head with a checkpoint's classes."""
    sizes = saved.num_classes, cfg.Model.embedding_size
    head = build_head(cfg.Head, build_rule(cfg.Optimizer), *sizes, cfg.Global.seed, cfg.Global.output_dir)
    load_rows(head, saved)
    return head
