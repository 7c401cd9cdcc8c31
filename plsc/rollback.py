"""Back to an older checkpoint with a lower learning rate, where too many steps in a row had to be skipped (Global.rollbacks).

The checkpoint is the newest whole one from before the last good step: at least that step is taken anew, at the lower rate, so the
run cannot meet the same weights again. How often it was done is part of the checkpoints that follow, so a resumed run has the same
rates; one that is killed before the next checkpoint diverges and goes back once more, in the same way.

Try it: `pytest tests/test_rollback.py`; what a user sees is in docs/resume.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from plsc import checkpoint, distributed, log
from plsc.divergence import DivergedError
from plsc.errors import UserError

if TYPE_CHECKING:
    from plsc.trainer import Trainer

FACTOR = 0.5  # on the learning rate, each time


def roll_back(trainer: Trainer, error: DivergedError) -> None:
    """Put `trainer` back, and its metrics, after `error`; every rank calls it. Raises `error` itself where the run may not go back
    (again), or has no checkpoint for it, and leaves the checkpoints as they are; UserError that of rank 0."""
    count = trainer.divergence.rollbacks + 1
    if count > trainer.cfg.Global.rollbacks:
        raise error
    diverged, last_good = trainer.step + 1, trainer.step + 1 - trainer.divergence.in_a_row
    path = _way_back(trainer.checkpoints, last_good)
    if path is None:
        raise error
    trainer.optimizer.clear_grad()
    trainer.resume(path)
    trainer.divergence.rollbacks = count
    if trainer.metrics:
        trainer.metrics.rewind(trainer.step)
    if distributed.rank() == 0:
        log.get_logger().warning(
            f"rolled back from step {diverged} to step {trainer.step}, learning rate times {FACTOR**count:g} from here on "
            f"(rollback {count} of {trainer.cfg.Global.rollbacks}): {error.what}"
        )


def _way_back(root: str, last_good: int) -> Path | None:
    """The newest whole checkpoint before that step, none of the newer left under its name; the same on every rank."""

    def find() -> Path | None:
        try:
            path = checkpoint.latest(root, before=last_good)
            if path:
                checkpoint.withdraw(root, after=int(path.name[5:]))
        except (UserError, OSError) as error:
            raise UserError(f"{root}: no way back to an earlier checkpoint: {error}") from error
        return path

    return distributed.run_on_rank_0(find)  # it reads every byte
