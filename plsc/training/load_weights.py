"""Build backbone and head of a config, and load a checkpoint's weights into them.

Any number of ranks reads a checkpoint of any other. Training, evaluating and exporting share this.
"""

from typing import Any

import paddle

from plsc.backbones.config import ModelCfg
from plsc.checkpoint import store
from plsc.checkpoint.manifest import BACKBONE
from plsc.config import Config
from plsc.data.dataset import Dataset, misnumbered_class
from plsc.errors import UserError, in_one_line
from plsc.heads.softmax import SoftmaxHead
from plsc.training.embed import check_output
from plsc.utils.logging import get_logger
from plsc.utils.registry import is_import_path

ROWS_AT_ONCE = 65_536  # of the centres: no second copy of the shard in memory


def build_backbone(section: ModelCfg, seed: int, image_shape: tuple[int, ...]) -> paddle.nn.Layer:
    """Build the backbone with its initial weights, the same on every rank. UserError for a class of the
    user's own that cannot embed two images of this shape."""
    paddle.seed(seed)
    options = {"embedding_size": section.embedding_size, "image_shape": image_shape}
    if not is_import_path(section.name):
        return section.build(**options)
    try:
        backbone = section.build(**options)
        backbone.eval()
        with paddle.no_grad():
            check_output(backbone(paddle.zeros([2, *image_shape])), 2, section.embedding_size)
    except Exception as error:  # of any kind, in the user's class or in Paddle
        text = in_one_line(error).removeprefix(f"{section.name}: ")  # which `build` puts in front
        raise UserError(
            f"{section.name}, given images {[2, *image_shape]}: {text}", key="Model.name"
        ) from error
    backbone.train()
    return backbone


def load_backbone(backbone: paddle.nn.Layer, saved: store.Checkpoint, remedy: str = "") -> None:
    """Load a checkpoint's weights, those to use, into `backbone`; UserError if they are of another
    network.

    remedy: what to do then; "": give the Model section of the run.
    """
    config = saved.path.parent.parent / "config.yaml"
    remedy = remedy or (
        "the Model section must be that of the run that made it" + f": -c {config}" * config.is_file()
    )
    own = backbone.state_dict()
    saved.check_matches(saved.num_classes, saved.embedding_size, backbone=own, remedy=remedy)
    for name, array in saved.weights().items():
        own[name].set_value(array)


def load_network(
    saved: store.Checkpoint, cfg: Config, model: paddle.nn.Layer | None = None
) -> paddle.nn.Layer:
    """Build the backbone of the config's Model, or take `model`, and give it the checkpoint's weights to use.

    Raises UserError if they are of another network.
    """
    backbone = model or build_backbone(cfg.Model, cfg.Global.seed, saved.preprocessing.shape)
    remedy = ""
    if model:
        remedy = "model= must be the network that the run was trained with"
    elif saved.config.get("Model") == cfg.Model.model_dump(mode="json"):
        remedy = (
            "the run was trained with a network given as model=, or the class has changed; give the network "
            f"in Python, Entry('{saved.path.parent.parent}', model=...)"
        )
    load_backbone(backbone, saved, remedy)
    if saved.manifest.weights != BACKBONE:
        get_logger().info(f"the weights are those of {saved.weights_file}, not the ones that are trained")
    return backbone


# What a run must have in common with the one that it goes on with, since the shapes of the arrays do not show
# it; what was frozen has no optimizer state.
_MUST_MATCH = (
    *("optimizer", "head_optimizer", "head", "preprocessing"),
    *("freeze", "freeze_norms", "global_batch"),
)
_OF_ORDER = ("seed", "steps_per_epoch")  # random numbers and the order of the data depend on them


def refuse_other_run(saved: store.Checkpoint, ours: dict[str, Any], data: Dataset) -> list[str]:
    """Refuse by UserError a checkpoint of another run -> warnings of what changes only the order of the data.

    ours: the state of this run, see Trainer.state_dict. data: the data set that it trains on.
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
    remark = "it goes on with other random numbers and data than it would have had"
    return [f"{differences[name]}: {remark}" for name in _OF_ORDER if name in differences]


def load_rows(head: SoftmaxHead, saved: store.Checkpoint) -> None:
    """Load this rank's rows of a checkpoint of any world size into `head`; UserError if they are of another
    head."""
    state, shard = head.bank.state(), head.shard
    saved.check_matches(shard.num_classes, head.bank.width, head=state)
    for start in range(shard.start, shard.stop, ROWS_AT_ONCE):
        head.bank.load_rows(start - shard.start, saved.head(start, min(start + ROWS_AT_ONCE, shard.stop)))
