"""Train a network whose embeddings can be compared with an older one's, so that a gallery of the older one
stays in use.

Shen et al., "Towards Backward-Compatible Representation Learning", CVPR 2020: beside its own head, centres of
the old network, which are frozen, classify the new embeddings (the influence loss). The centre of a class is
the mean of the old network's embeddings of its images, so classes that the old run has not had take part,
too, and names are not needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paddle

from plsc import distributed
from plsc.config import Config
from plsc.data.dataset import Dataset
from plsc.data.loader import Batch
from plsc.distributed.accelerator import to_device
from plsc.heads.config import HeadCfg
from plsc.heads.optimizer import Frozen
from plsc.heads.softmax import SoftmaxHead
from plsc.training.build_head import build_head, logits_budget
from plsc.training.finetune import set_means
from plsc.training.head_bytes import head_bytes
from plsc.training.other_run import OtherRun, refuse_other_network
from plsc.training.parts.part import Bytes, Part, Sizes
from plsc.utils.logging import get_logger


class Compatible(Part):
    """Classifies the embeddings of a step by frozen centres of the old network.

    Args:
        other: the old run.
    """

    name = "compatible"

    def __init__(self, other: OtherRun):
        self.network = other.network
        self._other = other
        self._head: SoftmaxHead | None = None

    @property
    def path(self) -> Path:
        """The old network's checkpoint."""
        return self._other.saved.path

    def describe(self) -> str:
        return f"{self.path}, whose embeddings the new ones can be compared with"

    @staticmethod
    def bill(cfg: Config, sizes: Sizes) -> dict[str, Bytes]:
        if cfg.Global.compatible_with is None:
            return {}
        old = cfg.model_copy(update={"Head": head_of_old_classes(cfg.Head)})
        rank = sizes.classes, sizes.selected, cfg.Model.embedding_size, sizes.samples
        parts = head_bytes(old, *rank, sizes.threads, second=True)
        if sizes.whole_budget:
            parts["blocks"] = max(parts["blocks"], logits_budget(old.Head))
        return {"head of compatible_with": Bytes(sum(parts.values()))}

    def start(self, run: Any) -> None:
        """Build the frozen centres: they are computed anew in each process that resumes the run."""
        cfg, dataset = run.cfg, run.dataset
        self._head = build_head(
            head_of_old_classes(cfg.Head),
            Frozen(),
            dataset.num_classes,
            cfg.Model.embedding_size,
            cfg.Global.seed,
            ranges=getattr(dataset, "ranges", None),
            amp=cfg.Global.amp,
        )
        classes = np.arange(dataset.num_classes)
        without = set_means(self._other.build_network(), self._head, dataset, classes, length=1.0, bias=0.0)
        if distributed.rank() == 0:
            get_logger().info(
                f"compatible with {self.path}: frozen centres of {len(classes) - len(without):,} classes"
            )

    def loss(self, batch: Batch, emb_BD: paddle.Tensor) -> paddle.Tensor:
        return self._head(emb_BD, to_device(batch.labels), batch.step, counts=batch.counts, check=False).loss

    def state_dict(self) -> dict[str, Any]:
        return {"required": "Global.compatible_with", "network": self.network}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        refuse_other_network(self.name, state, self.network)


def head_of_old_classes(cfg: HeadCfg) -> HeadCfg:
    """Return the config of the head that has the old network's classes, in a run with this one.

    It has no margin, and one centre of a class, in the device's memory whatever the bank of the run is.
    """
    shared = ("scale", "sample_rate", "logits_budget_mb", "compute_dtype")
    return HeadCfg(name="dist_arcface", margin=0.0, **{key: getattr(cfg, key) for key in shared})


def build_compatible(cfg: Config, dataset: Dataset, alone: bool = False) -> Compatible | None:
    """Build the part of Global.compatible_with, None without it. UserError if that run does not fit this one.

    alone: as of OtherRun.
    """
    if cfg.Global.compatible_with is None:
        return None
    other = OtherRun(cfg.Global.compatible_with, "Global.compatible_with", alone)
    other.refuse_other(dataset.preprocessing, cfg.Model.embedding_size)
    return Compatible(other)
