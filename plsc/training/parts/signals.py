"""Stop a run after the same step on all ranks where one of them is asked to by a signal, and watch for ranks
that hang."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

from plsc import distributed
from plsc.distributed.guard import Guard
from plsc.training.parts.part import Part
from plsc.training.step import StepResult


class Signals(Part):
    """Tells `guard` of the steps that are done, and all ranks of the signals that it has noted."""

    def __init__(self, guard: Guard):
        self._guard = guard
        self._paused = False  # since the last step

    def start(self, run: Any) -> None:
        self._guard.step_started(run.step)

    def flags(self) -> dict[str, float]:
        return {"signal": self._guard.signal}

    def between(self, run: Any, result: StepResult) -> None:
        number = int(result.verdict.flags["signal"].max())
        if self._paused:  # an evaluation or a save may take long: its signal does not wait for another step
            number = max(number, *distributed.gather_counts(self._guard.signal))
            self._paused = False
        self._guard.step_started(run.step)
        if number and run.step < run.total_steps:
            run.stop(signal.Signals(number).name)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        self._paused = True
        self._guard.allow_pause()
        yield

    def end(self, run: Any) -> None:
        if run.stopped:
            self._guard.stop(run.stopped)

    def close(self) -> None:
        self._guard.allow_pause()
