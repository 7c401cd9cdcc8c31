"""Go back to an older checkpoint where too many steps in a row had to be skipped (Global.rollbacks), or end
the run.

The checkpoint is the newest whole one from before the last good step: at least that step is repeated, at a
lower rate, so the run does not reach the same weights again. Later checkpoints contain the number of
rollbacks, so a resumed run has the same rates; one that is killed before the next checkpoint diverges and
goes back once more, in the same way.

Try it: `pytest tests/training/parts/test_rollback.py`; what a user sees is in docs/resume.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt

from plsc import distributed
from plsc.checkpoint import store
from plsc.errors import UserError
from plsc.training.parts.part import Part, State
from plsc.training.step import StepResult
from plsc.utils.logging import get_logger

FACTOR = 0.5  # of the learning rate, for each rollback


class Rollbacks(State):
    """How often a run went back."""

    count: NonNegativeInt = 0


class Rollback(Part):
    """Goes back at most `most` times to a checkpoint in `root`.

    Attributes: `count`, how often the run went back.
    """

    name = "rollback"

    def __init__(self, most: int, root: Path):
        self.count = 0
        self._most = most
        self._root = root

    @property
    def factor(self) -> float:
        """Factor on the learning rates."""
        return FACTOR**self.count

    def between(self, run: Any, result: StepResult) -> None:
        """Go back after a step that is one too many to be left out; raise its error where the run may not go
        back (again), or has no checkpoint for it. The checkpoints stay as they are then."""
        error = result.left_out and result.left_out.error
        if not error:
            return
        count = self.count + 1
        if count > self._most:
            raise error
        with run.pause():
            path = go_back(self._root, result.number - run.since_good)
            if path is None:
                raise error
            run.resume(path)
        self.count = count
        if distributed.rank() == 0:
            get_logger().warning(
                f"rolled back from step {result.number} to step {run.step}, learning rate times {self.factor:g} from here on "
                f"(rollback {count} of {self._most}): {error.what}"
            )

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = Rollbacks.model_validate(state).count


def go_back(root: Path, last_good: int, first_step: int = 0) -> Path | None:
    """Find the newest whole checkpoint before the step `last_good`, and set the newer ones aside; None, and
    nothing is changed, if there is none from `first_step` on. Every rank calls it. UserError if rank 0
    cannot.
    """

    def find() -> Path | None:
        try:
            path = store.find(root, rename=True, before=last_good)
            if path and store.Checkpoint.open(path, verify=False).step < first_step:
                return None
            if path:
                store.set_aside_after(root, store.step_of(path))
        except (UserError, OSError) as error:
            raise UserError(f"{root}: no way back to an earlier checkpoint: {error}") from error
        return path

    return distributed.run_on_rank_0(find)  # it reads every byte
