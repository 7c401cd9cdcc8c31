"""Define what a feature of a run is: a `Part`, which the loop of plsc/training/trainer.py calls at its places.

class Lengths(Part):
    name = "lengths"

    def row(self):
        return {"length": self.length}

A part knows the run that calls it and no other part. The list of a run's parts, in the order in which they are called,
stands in plsc/training/build.py. How to write one: docs/extend.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import paddle

from plsc.data.loader import Batch
from plsc.heads.softmax import HeadOutput


@dataclass(frozen=True)
class TakenStep:
    """A step as this rank has it after the backward pass.

    learning_rate: of the update. emb_BD: with its gradient. out: of the head. losses: of the parts, by their names.
    """

    batch: Batch
    learning_rate: float
    emb_BD: paddle.Tensor
    out: HeadOutput
    losses: Mapping[str, paddle.Tensor]

    @property
    def number(self) -> int:
        """The step's number, from 1."""
        return self.batch.step + 1


class Part:
    """One feature of a run. Every rank makes one, and all ranks take the same calls; every method may be left out.

    Attributes: `name`, of its state in a checkpoint and of its loss in the rows of metrics.jsonl.
    """

    name = ""

    def start(self, run: Any) -> None:
        """Prepare before the first step of this process; `run` is the Trainer, `run.resumed` says whether a checkpoint was taken over."""

    def loss(self, batch: Batch, emb_BD: paddle.Tensor) -> paddle.Tensor | None:
        """Compute a loss to add to the head's: a scalar, the mean over the samples of all ranks, the same on every rank.

        Its gradient on this rank's embeddings is multiplied by the number of ranks, as the head's is (`global_mean` of
        plsc/distributed does both). It reads no value of the device. A gradient that is not finite makes the step one
        that does not count. None: nothing is added.

        Args:
            emb_BD: embeddings of the batch, float32, with their gradient to come.
        """
        return None

    def update(self, run: Any, step: TakenStep) -> None:
        """Take in a step that counts, after the update of the weights."""

    def row(self) -> dict[str, float]:
        """Return numbers for the row of metrics.jsonl that is due."""
        return {}
