"""The parts of a run by its config, and what a checkpoint puts into them: the backbone, and this rank's rows of the head.

Any number of ranks reads a checkpoint of any other. Training, testing and exporting share this. To look at what there is:
`plsc-ckpt inspect output/checkpoints/step-00000656`.
"""

from __future__ import annotations

import paddle

from plsc import checkpoint
from plsc.config import Config
from plsc.heads import build_head
from plsc.heads.softmax import SoftmaxHead

_ROWS_AT_ONCE = 65_536  # of the centres: no second copy of the shard in memory


def build_backbone(cfg: Config, image_shape: tuple[int, int, int]) -> paddle.nn.Layer:
    """The backbone with its initial weights, the same on every rank."""
    paddle.seed(cfg.Global.seed)
    return cfg.Model.build(embedding_size=cfg.Model.embedding_size, image_shape=image_shape)


def load_backbone(backbone: paddle.nn.Layer, saved: checkpoint.Checkpoint) -> None:
    """Put a checkpoint's weights into `backbone`; UserError if they are of another network."""
    own = backbone.state_dict()
    saved.check_matches(saved.num_classes, saved.embedding_size, backbone=own)
    for name, array in saved.backbone().items():
        own[name].set_value(array)


def load_head(head: SoftmaxHead, saved: checkpoint.Checkpoint) -> None:
    """Put this rank's rows of a checkpoint of any world size into `head`; UserError if they are of another head."""
    state, shard = head.bank.state(), head.shard
    saved.check_matches(shard.num_classes, head.bank.width, head=state)
    if head.margin:
        head.margin.load_state(saved.state["margin"])
    for start in range(shard.start, shard.stop, _ROWS_AT_ONCE):
        rows = saved.head(start, min(start + _ROWS_AT_ONCE, shard.stop))
        head.bank.load_rows(start - shard.start, rows)


def build_saved_head(cfg: Config, saved: checkpoint.Checkpoint) -> SoftmaxHead:
    """The config's head with a checkpoint's classes."""
    sizes = saved.num_classes, cfg.Model.embedding_size
    head = build_head(cfg.Head, cfg.Optimizer, *sizes, cfg.Global.seed, cfg.Global.output_dir)
    load_head(head, saved)
    return head
