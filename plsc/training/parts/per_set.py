"""Add up loss and accuracy of each of several data sets that are trained on together, for the rows of metrics.jsonl.

The sums stay on the device, and on their rank until a row is due: a step sends nothing and waits for nothing. They are
float64 sums of float32 numbers, which hardly ever round, so they do not depend on the ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle

from plsc import distributed
from plsc.checkpoint.train_state import SetState
from plsc.data.joined import Joined
from plsc.errors import shown
from plsc.training.parts.part import Part, TakenStep
from plsc.utils.device import to_device
from plsc.utils.tensors import tensor_of


class PerSet(Part):
    """Adds up the losses of the sets that are trained on together."""

    name = "per_set"

    def __init__(self, data: Joined):
        self._data = data
        self._sums = self._zeros()

    def _zeros(self) -> paddle.Tensor:
        """Make the sums: loss, correct samples and samples of each set, float64 [sets, 3]."""
        return paddle.zeros([len(self._data.parts), 3], "float64")

    def update(self, run: Any, step: TakenStep) -> None:
        """Add this rank's samples of a step."""
        out = step.out
        sets = np.arange(len(self._data.parts))[:, np.newaxis]
        of_set_SB = to_device((self._data.sets_of(step.batch.indices) == sets).astype(np.float64))
        values_B3 = paddle.stack(
            [out.losses_B, out.correct_B.astype("float32"), paddle.ones_like(out.losses_B)], axis=1
        )
        self._sums = self._sums + paddle.matmul(of_set_SB, values_B3.detach().astype("float64"))

    def row(self) -> dict[str, float]:
        """Return mean loss and accuracy of each set with samples since the last row, by "loss/title" and
        "accuracy/title". Collectives: one all_reduce SUM of 3 numbers a set."""
        sums = distributed.all_reduce(self._sums).tolist()
        self._sums = self._zeros()
        row = {}
        for title, (loss, correct, samples) in zip(self._data.titles, sums):
            if samples:
                row[f"loss/{shown(title)}"] = loss / samples
                row[f"accuracy/{shown(title)}"] = correct / samples
        return row

    def state(self) -> list[SetState]:
        """Describe the sets, with the sums of all ranks, for a checkpoint. Every rank calls it."""
        sums = distributed.all_reduce(self._sums.clone()).tolist()
        return [
            SetState(title=title, classes=part.num_classes, own=own, sums=of_set)
            for title, part, own, of_set in zip(self._data.titles, self._data.parts, self._data.own, sums)
        ]

    def resume(self, states: list[SetState]) -> None:
        """Go on with the sums of a checkpoint of the same sets: on rank 0, the others begin with none."""
        self._sums = self._zeros()
        if states and distributed.rank() == 0:
            self._sums = tensor_of(np.array([each.sums for each in states]))
