"""Describe a step of a training: what this rank computed, and what it came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import paddle

from plsc.data.loader import Batch
from plsc.errors import UserError
from plsc.heads.softmax import HeadOutput


@dataclass(frozen=True)
class TakenStep:
    """A step as this rank has it after the backward pass.

    index_B: the batch's indices on the device, int64. learning_rate: of the backbone's update. emb_BD: with
    its gradient.
    out: of the head. losses: of the parts, by their names.
    """

    batch: Batch
    index_B: paddle.Tensor
    learning_rate: float
    emb_BD: paddle.Tensor
    out: HeadOutput
    losses: Mapping[str, paddle.Tensor]

    @property
    def number(self) -> int:
        """The step's number, from 1."""
        return self.batch.step + 1


@dataclass(frozen=True)
class Verdict:
    """What all ranks know of a step, the same on every rank.

    bad_backbone: whether a gradient of the backbone is not finite on some rank; bad_head: whether the loss,
    or a gradient that the head has computed, is not. stray: labels that are no class. loss, accuracy: of the
    step. flags: the parts' numbers by name, of each rank [W].
    """

    bad_backbone: bool
    bad_head: bool
    stray: int
    loss: float
    accuracy: float
    flags: Mapping[str, np.ndarray]

    @property
    def counts(self) -> bool:
        """Whether the step may change anything."""
        return not (self.bad_backbone or self.bad_head or self.stray)


class LeftOut(NamedTuple):
    """A step that does not count, explained. error: ends the run unless a part goes back; None: the run goes
    on."""

    error: UserError | None = None


@dataclass(frozen=True)
class StepResult:
    """A step that is done. left_out: None for one that counts."""

    taken: TakenStep
    verdict: Verdict
    left_out: LeftOut | None

    @property
    def number(self) -> int:
        """The step's number, from 1."""
        return self.taken.number
