"""Train a network to give the embeddings of another one, the teacher, beside its own task (distillation).

The teacher's network embeds the same pixels, after the same augmentation, in evaluation mode. Its class
centres may take the place of this run's: then both networks put a class in the same direction.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
from paddle.nn.functional import cosine_similarity

from plsc import distributed
from plsc.config import Config
from plsc.data.dataset import Dataset, class_names
from plsc.data.loader import Batch
from plsc.errors import UserError
from plsc.training.embed import to_input
from plsc.training.finetune import refuse_other_head, take_centres
from plsc.training.groups import parameters_of
from plsc.training.other_run import OtherRun, refuse_other_network
from plsc.training.parts.part import Bytes, Part, Sizes
from plsc.utils.logging import get_logger
from plsc.utils.timing import timer

_REMEDY = "set Teacher.centres=false for centres of the run's own"


class Teacher(Part):
    """Computes `weight` times 1 - cosine between each embedding and the teacher's of the same sample.

    Args:
        other: the teacher.
        weight: of the loss, against the head's; 0: the network embeds nothing in a step.
        batch_size: most samples that go through the teacher at once.
        row_C: the teacher's class of each class, -1 where it has none; None: its centres are not taken.
    """

    name = "teacher"

    def __init__(self, other: OtherRun, weight: float, batch_size: int, row_C: np.ndarray | None):
        self.network = other.network
        self._saved = other.saved
        self._preprocessing = other.preprocessing
        self._backbone = other.build_network()
        self._weight = weight
        self._batch_size = batch_size
        self._row_C = row_C

    def describe(self) -> str:
        parameters = sum(parameter.size for parameter in parameters_of(self._backbone).values())
        network = f"{type(self._backbone).__name__} of {self._saved.path}"
        size = f"{parameters:,} parameters, {4 * parameters / 2**20:.1f} MB"
        if self._row_C is None:
            return f"{network}, {size}"
        known = int((self._row_C >= 0).sum())
        return f"{network}, {size}; its centres of {known:,} classes, means of {len(self._row_C) - known:,}"

    @staticmethod
    def bill(cfg: Config, sizes: Sizes) -> dict[str, Bytes]:
        if sizes.passing is None:
            return {}
        held = sizes.passing.held * min(cfg.DataLoader.Train.batch_size, sizes.batch)
        # While it embeds, the backbone has no gradients yet, and of accumulated batches no activations
        # either.
        beyond = held - sizes.spare
        more = {"activations of the teacher": Bytes(beyond)} if beyond > 0 else {}
        return {"teacher": Bytes(4 * sizes.passing.numbers), **more}

    def start(self, run: Any) -> None:
        """Take the teacher's centres, unless the run goes on with its own."""
        if run.resumed:
            return
        without = []
        if self._row_C is not None:
            without = take_centres(self._saved, self._row_C, run.head, self._backbone, run.dataset)
        if distributed.rank() == 0:
            get_logger().info(f"teacher: {self.describe()}")
            if without:
                get_logger().warning(
                    f"teacher: {len(without):,} classes that it does not know have no readable image, and random centres"
                )

    def loss(self, batch: Batch, emb_BD: paddle.Tensor) -> paddle.Tensor:
        if self._weight == 0:
            return paddle.zeros([])
        with timer.part("head"):
            cosine_B = cosine_similarity(emb_BD.flatten(1), self._embed(batch.images))
            return distributed.global_mean(self._weight * (1 - cosine_B), batch.counts)

    def state_dict(self) -> dict[str, Any]:
        return {"required": "Teacher.checkpoint", "network": self.network, "centres": self._row_C is not None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        refuse_other_network(self.name, state, self.network)
        ours = self._row_C is not None
        if (theirs := state.get("centres")) != ours:  # only the start of a run takes them
            raise UserError(
                f"the checkpoint was made with Teacher.centres {theirs}, this run has {ours}: resume with the same, or start a new run "
                "with Global.init_from in another Global.output_dir"
            )

    @paddle.no_grad()
    def _embed(self, images: np.ndarray) -> paddle.Tensor:
        starts = range(0, len(images), self._batch_size)
        parts = [to_input(images[at : at + self._batch_size], self._preprocessing) for at in starts]
        return paddle.concat([self._backbone(part).flatten(1) for part in parts])


def open_teacher(cfg: Config, data: Dataset, alone: bool = False) -> OtherRun | None:
    """Open the run that Teacher.checkpoint names, None without one. UserError if its network does not fit
    this run.

    alone: as of OtherRun.
    """
    if cfg.Teacher.checkpoint is None:
        return None
    other = OtherRun(cfg.Teacher.checkpoint, "Teacher.checkpoint", alone)
    other.refuse_other(data.preprocessing, cfg.Model.embedding_size)
    return other


def build_teacher(cfg: Config, data: Dataset, alone: bool = False) -> Teacher | None:
    """Build the teacher that the config names, None without one. UserError if it does not fit this run.

    alone: as of OtherRun.
    """
    other = open_teacher(cfg, data, alone)
    if other is None:
        return None
    row_C = None
    if cfg.Teacher.centres:
        refuse_other_head(cfg.Head, cfg.Model.embedding_size, other.saved, other.where, _REMEDY)
        try:
            row_C = other.rows_of(class_names(data))
        except UserError as error:
            raise UserError(f"{error}; {_REMEDY}") from error
    return Teacher(other, cfg.Teacher.weight, cfg.DataLoader.Train.batch_size, row_C)
