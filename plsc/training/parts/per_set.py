"""Add up loss and accuracy of each of several data sets that are trained on together, for the rows of
metrics.jsonl.

The sums stay on the device, and on their rank until a row is due: a step sends nothing and waits for nothing.
They are float64 sums of float32 numbers, which hardly ever round, so they do not depend on the ranks.
"""

from __future__ import annotations

import itertools
from typing import Annotated, Any

import numpy as np
import paddle
from pydantic import Field, FiniteFloat, NonNegativeInt

from plsc import distributed
from plsc.data.joined import Joined
from plsc.errors import UserError, shown
from plsc.training.parts.part import Part, State
from plsc.training.step import TakenStep
from plsc.utils.tensors import tensor_of


class SetState(State):
    """One of several data sets that are trained on together."""

    title: str
    classes: NonNegativeInt
    own: bool
    """Whether its classes are a range of their own."""
    sums: Annotated[list[FiniteFloat], Field(min_length=3, max_length=3)]
    """Loss, correct samples and samples since the last row of metrics.jsonl."""


class Sets(State):
    """The sets of a run with several, in their order."""

    sets: list[SetState] = Field([])


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
        index_B = step.index_B
        of_sets = [
            ((start <= index_B) & (index_B < stop)).astype("float32")
            for start, stop in itertools.pairwise(self._data.starts.tolist())
        ]
        values_B3 = paddle.stack(
            [out.losses_B, out.correct_B.astype("float32"), paddle.ones_like(out.losses_B)], axis=1
        )
        of_set_SB = paddle.stack(of_sets).astype("float64")
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

    def state_dict(self) -> dict[str, Any]:
        """Describe the sets, with the sums of all ranks. Collectives: one all_reduce SUM of 3 numbers a
        set."""
        sums = distributed.all_reduce(self._sums.clone()).tolist()
        return {"required": "several data sets", "sets": [one.model_dump() for one in self._described(sums)]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the sums: on rank 0, the others begin with none. UserError if they are of other sets."""
        theirs = Sets.model_validate(state).sets
        ours = self._described(self._zeros().tolist())
        if _are_other_sets(theirs, ours):
            raise UserError(
                f"the checkpoint was made with {_describe(theirs)}, this run has {_describe(ours)}: resume with the same in the "
                "same order, or start a new run with Global.init_from in another Global.output_dir"
            )
        self._sums = self._zeros()
        if distributed.rank() == 0:
            self._sums = tensor_of(np.array([one.sums for one in theirs]))

    def _described(self, sums: list[list[float]]) -> list[SetState]:
        data = self._data
        return [
            SetState(title=title, classes=part.num_classes, own=own, sums=of_set)
            for title, part, own, of_set in zip(data.titles, data.parts, data.own, sums)
        ]


def _are_other_sets(theirs: list[SetState], ours: list[SetState]) -> bool:
    """Say whether the classes of two lists of data sets differ as far as the sets show it; a title alone may
    change."""
    kinds = [[(one.classes, one.own) for one in sets] for sets in (theirs, ours)]
    titles = [[one.title for one in sets] for sets in (theirs, ours)]
    exchanged = titles[0] != titles[1] and sorted(titles[0]) == sorted(titles[1])
    return kinds[0] != kinds[1] or exchanged


def _describe(sets: list[SetState]) -> str:
    named = (f"{shown(one.title)} ({one.classes:,} classes{', own' * one.own})" for one in sets)
    return f"the data sets {', '.join(named)}" if sets else "a single data set"
