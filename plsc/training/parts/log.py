"""Log a line and write a row of metrics.jsonl at regular steps, with what the other parts add to a row."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from pydantic import Field, NonNegativeInt

from plsc import distributed
from plsc.data.loader import Loader
from plsc.training.parts.part import Part, State
from plsc.training.step import StepResult
from plsc.utils.progress import Progress
from plsc.utils.sharding import split


class Replaced(State):
    """Corrupt images that each rank has replaced in an epoch."""

    replaced: list[NonNegativeInt] = Field([0], min_length=1)


class Log(Part):
    """Shows the progress of a training.

    Args:
        loader: of the training. every: steps between two lines.
    """

    name = "log"

    def __init__(self, loader: Loader, every: int):
        self._loader = loader
        self._every = every
        self._progress: Progress | None = None
        self._waited = 0.0  # seconds, the longest of a rank
        self._replaced_W = [0]  # corrupt images of each rank in this epoch

    def start(self, run: Any) -> None:
        self._progress = Progress(
            run.total_steps,
            run.steps_per_epoch,
            -(-run.total_steps // run.steps_per_epoch),
            self._every,
            run.step,
            data=lambda: (self._waited, sum(self._replaced_W)),
            extra=lambda: {key: value for part in run.parts for key, value in part.row().items()},
            advice=self._loader.advice,
        )

    def flags(self) -> dict[str, float]:
        return {"waited": self._loader.wait_seconds, "replaced": self._loader.replaced}

    def between(self, run: Any, result: StepResult) -> None:
        step, verdict = result.taken, result.verdict
        self._waited = verdict.flags["waited"].max().item()
        self._replaced_W = verdict.flags["replaced"].astype(int).tolist()
        numbers = {f"loss/{name}": loss for name, loss in step.losses.items()}
        row = self._progress.update(
            result.number,
            run.epoch,
            verdict.loss,
            step.learning_rate,
            sum(step.batch.counts),
            accuracy=verdict.accuracy,
            **numbers,
        )
        if row and run.metrics:
            run.metrics.write(row)
        if run.ends_epoch:
            self._replaced_W = [0]

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Leave the time of the block out of the measured times."""
        with self._progress.pause():
            yield

    def close(self) -> None:
        if self._progress:
            self._progress.close()

    def state_dict(self) -> dict[str, Any]:
        return {"replaced": self._replaced_W}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the loader go on counting; after a change of the number of ranks their sum is split evenly."""
        counts = Replaced.model_validate(state).replaced
        ranks = distributed.world_size()
        if len(counts) != ranks:
            counts = [stop - start for start, stop in split(sum(counts), ranks)]
        self._loader.resume(counts[distributed.rank()])
