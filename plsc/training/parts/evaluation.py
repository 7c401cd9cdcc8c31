"""Evaluate the network between steps, and remember what its cosines mean."""

from __future__ import annotations

from typing import Any

from plsc.training.evaluator import Evaluator
from plsc.training.parts.part import Part
from plsc.training.step import StepResult
from plsc.training.thresholds import OWNER, Threshold


class Evaluation(Part):
    """Evaluates at the end of a run, and at regular epochs and steps.

    Args:
        every_epochs: epochs between two evaluations; 0: none at their ends. every_steps: steps between two further ones;
            None: there are no further ones.

    Attributes: `evaluator`; `threshold`, by the last evaluation of the main set.
    """

    name = OWNER

    def __init__(self, evaluator: Evaluator, every_epochs: int, every_steps: int | None):
        self.threshold = Threshold(flip=evaluator.flip)
        self.evaluator = evaluator
        self._every_epochs = every_epochs
        self._every_steps = every_steps

    def between(self, run: Any, result: StepResult) -> None:
        if not self.evaluator.sets or not self._is_due(run):
            return
        with run.pause():
            self.evaluator.evaluate(run.step, run.epoch, run.metrics)
        self.threshold = Threshold(cosine=self.evaluator.row.get("threshold"), flip=self.evaluator.flip)

    def _is_due(self, run: Any) -> bool:
        if run.step == run.total_steps or (self._every_steps and run.step % self._every_steps == 0):
            return True
        return bool(run.ends_epoch and self._every_epochs and run.epoch % self._every_epochs == 0)

    def state_dict(self) -> dict[str, Any]:
        return self.threshold.model_dump()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = Threshold.model_validate(state)
        if saved.flip == self.evaluator.flip:  # that of other embeddings means nothing for these
            self.threshold = saved
