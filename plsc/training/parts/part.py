"""Define what a feature of a run is: a `Part`, which the loop of plsc/training/trainer.py calls at its
places.

A part knows the run that calls it, and no other part. The parts of a run, in the order in which they are
called, stand in plsc/training/build.py. How to write one: docs/extend.md.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import paddle
from pydantic import BaseModel, ConfigDict

from plsc.data.loader import Batch
from plsc.training.step import LeftOut, StepResult, TakenStep, Verdict


class State(BaseModel):
    """Plain values of a checkpoint, checked while they are read; a part's own derives from it."""

    model_config = ConfigDict(strict=True, frozen=True)


class Part:
    """One feature of a run. Every rank makes one, and all ranks take the same calls; every method may be left
    out.

    `run` is the Trainer.

    Attributes: `name`, of its state in a checkpoint and of its loss in the rows of metrics.jsonl; "" without
    both.
    """

    name = ""

    def describe(self) -> str:
        """Describe the part for a line of the dry run; "" where the config says it all."""
        return ""

    def start(self, run: Any) -> None:
        """Prepare before the first step of this process; `run.resumed` says whether a checkpoint was taken
        over."""

    def loss(self, batch: Batch, emb_BD: paddle.Tensor) -> paddle.Tensor | None:
        """Compute a loss to add to the head's: a scalar, the mean over the samples of all ranks, the same on
        every rank.

        Its gradient on this rank's embeddings is multiplied by the number of ranks, as the head's is;
        `plsc.distributed.global_mean` does both. It reads no value of the device. A gradient that is not
        finite makes the step one that does not count. None: nothing is added.

        Args:
            emb_BD: embeddings of the batch, float32, with their gradient to come.
        """
        return None

    def flags(self) -> dict[str, float]:
        """Return numbers of this rank that all ranks must learn of: the verdict on the step has them, of each
        rank."""
        return {}

    def update(self, run: Any, step: TakenStep) -> None:
        """Take in a step that counts, after the update of the weights."""

    def explain(self, run: Any, step: TakenStep, verdict: Verdict) -> LeftOut | None:
        """Say why a step does not count, while its gradients and the weights that it began with are there.

        The parts are asked in their order until one knows. None: this part does not.
        """
        return None

    def between(self, run: Any, result: StepResult) -> None:
        """Do what is due after a step: save, evaluate, log, go back."""

    def row(self) -> dict[str, float]:
        """Return numbers for the line and the row of metrics.jsonl that are due. Every rank calls it."""
        return {}

    def pause(self) -> AbstractContextManager[None]:
        """Return a context in which another part does what is no step, and takes long."""
        return nullcontext()

    def end(self, run: Any) -> None:
        """Finish after the run's last step, or where it was asked to stop."""

    def close(self) -> None:
        """Release what the part holds, however the training ended."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a run that is resumed must have again: plain values, and under "arrays" arrays by name.
        Every rank calls it.

        "required" names what a run must have to go on from there: it is refused without this part.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` has returned; {} where the checkpoint has nothing of this part."""
