"""Train a network whose embeddings can be compared with an older one's, so that a gallery of the older one stays in use.

Shen et al., "Towards Backward-Compatible Representation Learning", CVPR 2020: beside its own head, centres of the old network,
which are frozen, classify the new embeddings (the influence loss). The centre of a class is the mean of the old network's
embeddings of its images, so classes that the old run has not had take part, too, and names are not needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import paddle

from plsc import distributed
from plsc.checkpoint.train_state import COMPATIBLE
from plsc.config import Config
from plsc.data.dataset import Dataset
from plsc.heads.config import HeadCfg
from plsc.heads.optimizer import Frozen
from plsc.heads.softmax import SoftmaxHead
from plsc.training.build_head import build_head
from plsc.training.extra_loss import ExtraLoss
from plsc.training.finetune import set_means
from plsc.training.other_run import OtherRun
from plsc.utils.device import to_device
from plsc.utils.logging import get_logger

KEY = "Global.compatible_with"


class Compatible(ExtraLoss):
    """Classifies the embeddings of a step by frozen centres of the old network.

    Args:
        network: identity of the old network. head: has its centres; it is never stepped.
    """

    title = COMPATIBLE

    def __init__(self, network: str, head: SoftmaxHead):
        self.network = network
        self._head = head

    def __call__(
        self, images: np.ndarray, emb_BD: paddle.Tensor, labels: np.ndarray, step: int, counts: Sequence[int]
    ) -> paddle.Tensor:
        return self._head(emb_BD, to_device(labels), step, counts=counts, check=False).loss


def build_compatible(cfg: Config, dataset: Dataset) -> Compatible | None:
    """Build the loss of Global.compatible_with, None without it. Every rank calls it.

    Raises UserError for a run whose samples or embeddings are of another kind.
    """
    if cfg.Global.compatible_with is None:
        return None
    other = open_old_run(cfg, dataset)
    head = build_head(
        head_of_old_classes(cfg.Head),
        Frozen(),
        dataset.num_classes,
        cfg.Model.embedding_size,
        cfg.Global.seed,
        ranges=getattr(dataset, "ranges", None),
        amp=cfg.Global.amp,
    )
    without = set_means(
        other.build_network(), head, dataset, np.arange(dataset.num_classes), length=1.0, bias=0.0
    )
    if distributed.rank() == 0:
        get_logger().info(
            f"compatible with {other.saved.path}: frozen centres of {dataset.num_classes - len(without):,} classes"
        )
    return Compatible(other.network, head)


def head_of_old_classes(cfg: HeadCfg) -> HeadCfg:
    """Return the config of the head that has the old network's classes, in a run with this one.

    It has no margin, and one centre of a class, in the device's memory whatever the bank of the run is.
    """
    shared = ("scale", "sample_rate", "logits_budget_mb", "compute_dtype")
    return HeadCfg(name="dist_arcface", margin=0.0, **{key: getattr(cfg, key) for key in shared})


def open_old_run(cfg: Config, dataset: Dataset, alone: bool = False) -> OtherRun:
    """Open the run that Global.compatible_with names. UserError if it does not fit this run. alone: as of OtherRun."""
    other = OtherRun(cfg.Global.compatible_with, KEY, alone)
    other.refuse_other(dataset.preprocessing, cfg.Model.embedding_size)
    return other
