"""Define the section LRScheduler: a section and a formula for each learning rate schedule.

    schedule = load(None, ["LRScheduler.name=poly"]).LRScheduler
    schedule.rate(step=5, steps_per_epoch=10, total_steps=100)

A schedule has no state, so a resumed run needs only its step. The class centres' rate follows it, too.
"""

import functools
import itertools
import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from numbers import Real
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from plsc.errors import UserError, escape, in_one_line
from plsc.utils.registry import Registry
from plsc.utils.section import ClassSection, Section, one_of


class Schedule(ABC):
    """The base class for your own schedule, which a config names as `package.module:Class`."""

    @abstractmethod
    def factor(self, step: int, progress: float, steps_per_epoch: int) -> float:
        """Return the factor on the learning rate after the warm-up.

        Args:
            step: step in the run, from 0.
            progress: 0 at the first step after the warm-up, and rising towards 1 at the run's end.
            steps_per_epoch: steps of an epoch.
        """


class LRSchedulerCfg(Section, Schedule):
    """The learning rate over the run: a linear warm-up, and then the named schedule up to the last step."""

    name: str = "cosine"
    """`cosine` (half a cosine), `poly` (`(1 - progress) ** power`), `step` (times `gamma` at each milestone),
    `constant`, or your own as `package.module:Class`."""
    learning_rate: float = Field(0.1, gt=0)
    """The rate after the warm-up. Change it in proportion to the global batch."""
    warmup_epochs: float = Field(0.0, ge=0, le=10**9)
    """Epochs in which the rate rises linearly from 0. Fractions are allowed."""

    def rate(self, step: int, steps_per_epoch: int, total_steps: int) -> float:
        """Return a step's learning rate, 0 to total_steps - 1.

        During the warm-up the factor is (step + 1) / (warmup + 1). The first step after it has the full rate.
        """
        warmup = round(self.warmup_epochs * steps_per_epoch)
        if step < warmup:
            return self.learning_rate * (step + 1) / (warmup + 1)
        progress = (step - warmup) / max(1, total_steps - warmup)
        return self.learning_rate * self.factor(step, progress, steps_per_epoch)


class CosineCfg(LRSchedulerCfg):
    """Half a cosine."""

    name: Literal["cosine"] = "cosine"
    min_factor: float = Field(0.0, ge=0, le=1)
    """Lowest rate, relative to `learning_rate`."""

    def factor(self, step: int, progress: float, steps_per_epoch: int) -> float:
        return self.min_factor + (1 - self.min_factor) * 0.5 * (1 + math.cos(math.pi * progress))


class PolyCfg(LRSchedulerCfg):
    """`(1 - progress) ** power`."""

    name: Literal["poly"]
    power: float = Field(2.0, gt=0, le=100)
    """Exponent. 1 gives a straight line, and 2 falls faster at first."""
    min_factor: float = Field(0.0, ge=0, le=1)
    """Lowest rate, relative to `learning_rate`."""

    def factor(self, step: int, progress: float, steps_per_epoch: int) -> float:
        return self.min_factor + (1 - self.min_factor) * (1 - progress) ** self.power


class StepCfg(LRSchedulerCfg):
    """The rate drops at milestones."""

    name: Literal["step"]
    milestones: list[Annotated[float, Field(gt=0, le=10**9)]] = Field(min_length=1)
    """Epochs at which the rate drops, in rising order, such as `[10, 16, 18]`. Fractions are allowed."""
    gamma: float = Field(0.1, gt=0, le=1)
    """Factor on the rate at each milestone."""

    @field_validator("milestones")
    @classmethod
    def _rising(cls, value: list[float]) -> list[float]:
        if any(later <= earlier for earlier, later in itertools.pairwise(value)):
            raise ValueError("must be in rising order")
        return value

    def factor(self, step: int, progress: float, steps_per_epoch: int) -> float:
        return self.gamma ** bisect_right([round(epoch * steps_per_epoch) for epoch in self.milestones], step)


class ConstantCfg(LRSchedulerCfg):
    """The same rate after the warm-up."""

    name: Literal["constant"]

    def factor(self, step: int, progress: float, steps_per_epoch: int) -> float:
        return 1.0


class OwnScheduleCfg(LRSchedulerCfg, ClassSection):
    """Your own schedule. Further keys are keyword arguments of its class."""

    registry = Registry("schedule", {}, bases=("plsc.config.schedule:Schedule",))
    name: str

    @functools.cached_property
    def made(self) -> Any:
        """The schedule. It is built at the first use."""
        return self.build()

    def factor(self, step: int, progress: float, steps_per_epoch: int) -> float:
        try:
            factor = self.made.factor(step, progress, steps_per_epoch)
        except Exception as error:  # any error, since the class is a user's
            raise UserError(f"step {step + 1:,}: {in_one_line(error)}", key="LRScheduler.name") from error
        if not (isinstance(factor, Real) and 0 <= factor < math.inf):
            what = f"gave '{escape(str(factor))}' in step {step + 1:,}; a factor is a number from 0 up"
            raise UserError(what, key="LRScheduler.name")
        return float(factor)  # NumPy's, too


AnySchedule = one_of(CosineCfg, PolyCfg, StepCfg, ConstantCfg, OwnScheduleCfg)
