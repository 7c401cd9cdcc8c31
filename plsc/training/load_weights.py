"""Build a config's backbone, and load a checkpoint's weights into a backbone and a head.

The number of ranks that read a checkpoint may differ from the number that wrote it. Training, evaluation and
export share this module.

Try it: `load_network(store.Checkpoint.open("output/faces/checkpoints/step-00000100"), load("output/faces"))`.
"""

import copy
from typing import Any

import numpy as np
import paddle

from plsc.backbones.config import ModelCfg
from plsc.checkpoint import store
from plsc.checkpoint.manifest import BACKBONE
from plsc.config import Config
from plsc.config.merge import CONFIG
from plsc.data.dataset import Dataset, misnumbered_class
from plsc.errors import UserError, in_one_line
from plsc.heads.softmax import SoftmaxHead
from plsc.training.embed import check_output
from plsc.utils.logging import get_logger
from plsc.utils.registry import is_import_path

ROWS_AT_ONCE = 65_536  # how many centres to read at once, so that memory holds no second copy of the shard


def build_backbone(section: ModelCfg, seed: int, image_shape: tuple[int, ...]) -> paddle.nn.Layer:
    """Build the backbone with its initial weights, which are the same on every rank.

    Raises UserError if a user's own class cannot embed two images of this shape.

    Args:
        section: the config's section Model.
        seed: seed for the initial weights.
        image_shape: an image's shape, such as (3, 112, 112).
    """
    paddle.seed(seed)
    options = {"embedding_size": section.embedding_size, "image_shape": image_shape}
    if not is_import_path(section.name):
        return section.build(**options)
    try:
        backbone = section.build(**options)
        backbone.eval()
        with paddle.no_grad():
            check_output(backbone(paddle.zeros([2, *image_shape])), 2, section.embedding_size)
    except Exception as error:  # any error, in the user's class or in Paddle
        text = in_one_line(error).removeprefix(f"{section.name}: ")  # `build` prepends this
        raise UserError(
            f"{section.name}, given images {[2, *image_shape]}: {text}", key="Model.name"
        ) from error
    backbone.train()
    return backbone


def load_backbone(backbone: paddle.nn.Layer, saved: store.Checkpoint, remedy: str = "") -> None:
    """Load the weights to use from a checkpoint into `backbone`.

    Raises UserError if the weights belong to a different network.

    Args:
        backbone: the layer that gets the weights.
        saved: the checkpoint.
        remedy: what the error tells the user to do. "" tells the user to copy the run's Model section.
    """
    configs = (saved.path / CONFIG, saved.path.parent.parent / CONFIG)  # an imported checkpoint's, a run's
    written = next((f"; copy its Model section from {path}" for path in configs if path.is_file()), "")
    remedy = remedy or f"Model must be that of the run that made it{written}"
    own = backbone.state_dict()
    saved.check_matches(saved.num_classes, saved.row_width, backbone=own, remedy=remedy)
    for name, array in saved.weights().items():
        own[name].set_value(array)


def load_network(
    saved: store.Checkpoint, cfg: Config, model: paddle.nn.Layer | None = None
) -> paddle.nn.Layer:
    """Build the backbone of the config's Model, or copy `model`, and load the checkpoint's weights into it.

    `model` keeps its own weights. If they differ from the checkpoint's, a log line reports this.

    Raises UserError if the weights belong to a different network, or if `model` cannot be copied.

    Args:
        saved: the checkpoint.
        cfg: the config.
        model: Layer to copy instead of building Model.name's, or None.
    """
    remedy = ""
    if model is not None:
        backbone = _copy(model)
        remedy = "model= must be the network that the run was trained with"
    else:
        backbone = build_backbone(cfg.Model, cfg.Global.seed, saved.preprocessing.shape)
        if saved.config.get("Model") == cfg.Model.model_dump(mode="json"):
            remedy = (
                "the run was trained with a network given as model=, or the class has changed; give the "
                f"network in Python, Entry('{saved.path.parent.parent}', model=...)"
            )
    load_backbone(backbone, saved, remedy)
    if model is not None and not has_weights(model, saved):
        get_logger().info(
            f"model=: its own weights are not used and not changed; a copy has the weights of {saved.path}"
        )
    if saved.manifest.weights != BACKBONE:
        get_logger().info(f"the weights are those of {saved.weights_file}, not the ones that are trained")
    return backbone


def _copy(model: paddle.nn.Layer) -> paddle.nn.Layer:
    try:
        return copy.deepcopy(model)
    except Exception as error:  # any error, in the user's class or in Paddle
        raise UserError(
            f"model=: {type(model).__name__} cannot be copied ({in_one_line(error)}); "
            "name its class in Model.name instead"
        ) from error


def has_weights(backbone: paddle.nn.Layer, saved: store.Checkpoint) -> bool:
    """Return whether all arrays of `backbone` equal the checkpoint's weights to use."""
    own, weights = backbone.state_dict(), saved.weights()
    return own.keys() == weights.keys() and all(
        np.array_equal(own[name].numpy(), array) for name, array in weights.items()
    )


# Settings that a resumed run must have in common with the saved one. The arrays' shapes do not show a
# difference in them. Frozen parameters have no optimizer state.
_MUST_MATCH = (
    *("optimizer", "head_optimizer", "head", "preprocessing"),
    *("freeze", "freeze_norms", "global_batch"),
)
_OF_ORDER = ("seed", "steps_per_epoch", "images")  # they determine the random numbers and the data order


def refuse_other_run(saved: store.Checkpoint, ours: dict[str, Any], data: Dataset) -> list[str]:
    """Compare a checkpoint's settings with this run's.

    Raises UserError if the preprocessing, the class names or another setting in `_MUST_MATCH` differs.
    `Checkpoint.check_matches` compares the arrays. `changed_settings` only warns.

    Args:
        saved: the checkpoint.
        ours: this run's state, see Trainer.state_dict.
        data: this run's data set.

    Returns warnings about differences that change only the random numbers and the data order.
    """
    where = f"checkpoint {saved.path.name}"
    anew = "or start a new run with Global.init_from in another Global.output_dir"
    theirs = {**saved.plain("run"), "preprocessing": saved.preprocessing}
    ours = {**ours, "preprocessing": data.preprocessing}
    differences = {
        name: f"{where} was made with {name} {theirs.get(name)}, this run has {ours[name]}"
        for name in (*_MUST_MATCH, *_OF_ORDER)
        if theirs.get(name) != ours[name]
    }
    for name in _MUST_MATCH:
        if name in differences:
            raise UserError(f"{differences[name]}: resume with the same, {anew}")
    if wrong := misnumbered_class(saved.classes(), data, strangers=True):
        raise UserError(
            f"{wrong} in {where}: resume with the same classes, {anew}", key="DataLoader.Train.dataset"
        )
    remark = "the run continues with other random numbers and another data order"
    return [f"{differences[name]}: {remark}" for name in _OF_ORDER if name in differences]


def changed_settings(saved: store.Checkpoint, ours: dict[str, Any]) -> list[str]:
    """Return a warning for each key of network, head, optimizer, schedule or training set that has changed.

    Texts of the training set are not compared, because its files may have been moved. If there are several
    sets, their keys are not compared.

    ours: this run's config as plain values.
    """
    lines = [
        f"{section}.{key} is {ours[section][key]}, and {saved.path.name} was made with {before}"
        for section in ("Model", "Head", "Optimizer", "LRScheduler")
        for key, before in dict(saved.config.get(section, {})).items()
        if key in ours[section] and ours[section][key] != before
    ]
    theirs = saved.config.get("DataLoader", {}).get("Train", {}).get("dataset")
    mine = ours["DataLoader"]["Train"]["dataset"]
    if isinstance(theirs, dict) and isinstance(mine, dict):
        for key in {**theirs, **mine}:
            now, before = (each.get(key, "its default") for each in (mine, theirs))
            if now != before and not {type(now), type(before)} <= {str}:
                lines.append(
                    f"DataLoader.Train.dataset.{key} is {now}, and {saved.path.name} was made with {before}"
                )
    return lines


def load_rows(head: SoftmaxHead, saved: store.Checkpoint) -> None:
    """Load this rank's rows from a checkpoint into `head`. Any number of ranks may have written it.

    Raises UserError if the rows belong to a different head.
    """
    state, shard = head.bank.state(), head.shard
    saved.check_matches(shard.num_classes, head.bank.width, head=state)
    for start in range(shard.start, shard.stop, ROWS_AT_ONCE):
        head.bank.load_rows(start - shard.start, saved.head(start, min(start + ROWS_AT_ONCE, shard.stop)))
