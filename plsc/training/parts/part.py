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

    def update(self, run: Any, step: TakenStep) -> None:
        """Take in a step that counts, after the update of the weights; `run` is the Trainer."""

    def row(self) -> dict[str, float]:
        """Return numbers for the row of metrics.jsonl that is due."""
        return {}
