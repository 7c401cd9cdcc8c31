"""Leave out steps whose loss or gradients are not finite: log why, keep their batches, and end the run after
too many in a row.

A step that is left out changes only the step number: weights, momentum, BatchNorm's running statistics and a
margin's statistics stay the same, bit for bit. dump.py finds the cause and writes the batch.

Try it: `pytest tests/training/parts/test_divergence.py`; what a user sees is in docs/resume.md.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import NonNegativeInt

from plsc import distributed
from plsc.errors import UserError
from plsc.training.parts.dump import DumpWriter, find_cause
from plsc.training.parts.part import Part, State
from plsc.training.step import LeftOut, StepResult, TakenStep, Verdict
from plsc.utils.logging import get_logger


class DivergedError(UserError):
    """Too many steps in a row had to be skipped. step: number of the last one, from 1. what: its value that
    was not finite."""

    def __init__(self, text: str, what: str, step: int):
        super().__init__(text)
        self.what = what
        self.step = step


class Skipped(State):
    """The counts of `Divergence`."""

    skipped: NonNegativeInt = 0
    in_a_row: NonNegativeInt = 0


class Divergence(Part):
    """Counts the steps that are not finite.

    Args:
        most: steps in a row after which the run ends. dump: writes the batches.

    Attributes: `skipped`, steps that diverged so far; `in_a_row`, those since the last step that counted,
    without
        those that another part has explained.
    """

    name = "divergence"

    def __init__(self, most: int, dump: DumpWriter):
        self.skipped = 0
        self.in_a_row = 0
        self._most = most
        self._dump = dump

    def update(self, run: Any, step: TakenStep) -> None:
        self.in_a_row = 0

    def explain(self, run: Any, step: TakenStep, verdict: Verdict) -> LeftOut:
        """Log why a step diverged, and dump its batch."""
        self.skipped += 1
        self.in_a_row += 1
        batch = step.batch
        own_backward = partial(run.network.own_backward, batch.images, batch.step, step.emb_BD.grad)
        cause = find_cause(step, run.network.backbone, run.head, run.dataset.name, own_backward)
        rate = f"learning rate {step.learning_rate:.4g}"
        if distributed.rank() == 0:
            get_logger().warning(
                f"step {step.number}: {cause.text} ({rate}); step skipped ({self.in_a_row} of {self._most} in a row)"
            )
        if cause.here:
            self._dump.write(step, cause.here)
        if self.in_a_row < self._most:
            return LeftOut()
        advice = remedy(step.number, run.since_good)
        text = (
            f"{cause.text} at step {step.number} ({rate}), step {self.in_a_row} in a row that had to be skipped; the checkpoints are "
            f"as they were, the batches in {self._dump.folder}: {advice}"
        )
        return LeftOut(DivergedError(text, cause.text, step.number))

    def row(self) -> dict[str, float]:
        return {"skipped": self.skipped} if self.skipped else {}

    def state_dict(self) -> dict[str, Any]:
        return {"skipped": self.skipped, "in_a_row": self.in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        counts = Skipped.model_validate(state)
        self.skipped = counts.skipped
        self.in_a_row = counts.in_a_row

    def between(self, run: Any, result: StepResult) -> None:
        """Raise DivergedError, at the last step, if none of the run's steps counted."""
        steps = run.step - run.first_step
        ends_anyway = result.left_out and result.left_out.error
        if run.step < run.total_steps or run.since_good < steps or ends_anyway:
            return
        advice = remedy(run.step, run.since_good)
        if not self.in_a_row:
            advice = "float16's loss scale is found in the first steps: train more of them"
        raise DivergedError(
            f"all steps of the run, {steps:,}, had to be skipped, so it has learned nothing: {advice}",
            "not one step was finite",
            run.step,
        )


def remedy(step: int, since_good: int) -> str:
    """Suggest a remedy for a run that diverged at step `step` (from 1), after `since_good` skipped steps in a
    row."""
    if since_good < step:
        return "lower LRScheduler.learning_rate, lengthen its warm-up, or set Optimizer.clip_norm"
    return (
        "no step has been finite yet, so a lower learning rate will hardly help; look in the network for a "
        "division by 0, a log or a root of 0, and in the images of those batches"
    )
