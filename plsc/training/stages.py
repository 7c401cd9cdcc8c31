"""Train in stages, stretches of epochs each with values of its own: `Stages` in a config.

A stage ends with a checkpoint, and the next one is a training of its own that begins from it, with another
config. So a run that stops anywhere goes on as it would have. A run without `Stages` is one stage.

Try it: `pytest tests/training/test_stages.py`; what a user writes is in docs/training.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt

from plsc.checkpoint import store
from plsc.config import Config
from plsc.errors import UserError
from plsc.training.optim import build_schedule
from plsc.utils.yaml_lines import dump


class Place(BaseModel):
    """Where in a run a checkpoint was made, as it says itself. first_step, first_epoch: see Stage."""

    model_config = ConfigDict(strict=True, frozen=True)
    stage: NonNegativeInt = 0
    first_step: NonNegativeInt = 0
    first_epoch: NonNegativeInt = 0
    steps_per_epoch: PositiveInt


@dataclass(frozen=True)
class Stage:
    """A stretch of a run.

    Args:
        cfg: of the stage.
        number: of the stage, from 0; of a ramp each epoch is one.
        title: of it, for the log: where it stands, and what differs in it.
        epochs: of the stage. later: of all stages after it. None and 0: of a run without `Stages`.
        first_step, first_epoch: how many the run has done before it.
        schedule_done, schedule: epochs of the stages that share its learning rates' schedule: before it, and in all.
    """

    cfg: Config
    number: int = 0
    title: str = ""
    epochs: int | None = None
    later: int = 0
    first_step: int = 0
    first_epoch: int = 0
    schedule_done: int = 0
    schedule: int = 0

    def last_step(self, steps_per_epoch: int) -> int:
        """Compute the step that the stage ends at."""
        return self._step_after(0, steps_per_epoch)

    def total_steps(self, steps_per_epoch: int) -> int:
        """Compute the step that the run ends at, if all later stages have as many steps in an epoch."""
        return self._step_after(self.later, steps_per_epoch)

    def _step_after(self, later: int, steps_per_epoch: int) -> int:
        section = self.cfg.Global
        if self.epochs is None:
            return section.total_steps(steps_per_epoch)
        step = self.first_step + (self.epochs + later) * steps_per_epoch
        return min(step, section.max_steps or step)

    def learning_rate(self, steps_per_epoch: int) -> Callable[[int], float]:
        """Build the function step of the run -> learning rate."""
        if self.epochs is None:
            return build_schedule(self.cfg.LRScheduler, steps_per_epoch, self.last_step(steps_per_epoch))
        schedule = build_schedule(self.cfg.LRScheduler, steps_per_epoch, self.schedule * steps_per_epoch)
        first = self.schedule_done * steps_per_epoch - self.first_step
        return lambda step: schedule(first + step)

    def place(self, steps_per_epoch: int) -> Place:
        """Return what a checkpoint says of it."""
        return Place(
            stage=self.number,
            first_step=self.first_step,
            first_epoch=self.first_epoch,
            steps_per_epoch=steps_per_epoch,
        )


def first_stage(cfg: Config) -> Stage:
    """Return the stage that a run of this config begins with."""
    return _stages_of(cfg)[0]


def stage_after(cfg: Config, stage: Stage, step: int) -> Stage | None:
    """Return the stage that follows one that has ended at a step; None: the run is at its end."""
    stages = _stages_of(cfg)
    most = cfg.Global.max_steps
    if stage.number + 1 == len(stages) or (most and step >= most):
        return None
    first = {"first_step": step, "first_epoch": stage.first_epoch + (stage.epochs or 0)}
    return dataclasses.replace(stages[stage.number + 1], **first)


def stage_of(cfg: Config, path: Path) -> Stage:
    """Return the stage that a run goes on with from a checkpoint. UserError if the config has no such
    stage."""
    saved = store.Checkpoint.open(path, verify=False)
    saved.require("run", "seed", "steps_per_epoch")
    with saved.loading("run"):
        place = Place.model_validate(saved.plain("run"))
    stages = _stages_of(cfg)
    if place.stage >= len(stages):
        raise UserError(
            f"checkpoint {path.name} was made in stage {place.stage + 1}, and Stages has {len(stages)}: resume with the same stages, or start "
            "a new run with Global.init_from in another Global.output_dir"
        )
    first = {"first_step": place.first_step, "first_epoch": place.first_epoch}
    stage = dataclasses.replace(stages[place.stage], **first)
    if saved.step < stage.last_step(place.steps_per_epoch):
        return stage
    return stage_after(cfg, stage, saved.step) or stage


def _stages_of(cfg: Config) -> list[Stage]:
    """Return all stages, as far as they are known before the run; one where the config has none."""
    parts = cfg.stages
    if not parts:
        return [Stage(cfg)]
    epochs = [part.epochs for part in parts]
    begins = [number for number, part in enumerate(parts) if part.begins_schedule or number == 0]
    stages = []
    for number, part in enumerate(parts):
        first = max(begin for begin in begins if begin <= number)
        end = min((begin for begin in begins if begin > number), default=len(parts))
        changes = ", ".join(
            f"{'.'.join(map(str, path))} {dump(value)}" for path, value in part.changes.items()
        )
        stage = Stage(
            part.cfg,
            number,
            f"stage {part.number + 1} of {len(cfg.Stages)}, from epoch {sum(epochs[:number]) + 1} on: {changes or 'nothing differs'}",
            part.epochs,
            later=sum(epochs[number + 1 :]),
            schedule_done=sum(epochs[first:number]),
            schedule=sum(epochs[first:end]),
        )
        stages.append(stage)
    return stages
