"""Write checkpoints of a run: at the ends of epochs, at regular steps, after the best evaluation, and where
the run ends.

A checkpoint that cannot be written does not end the run, unless it is the last, or the third in a row.

Try it: `pytest tests/training/test_trainer.py`; what a user sees is in docs/resume.md.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt

from plsc import distributed
from plsc.checkpoint import store
from plsc.checkpoint.saved import Best
from plsc.data.dataset import class_names
from plsc.errors import UserError
from plsc.training.evaluator import Evaluator
from plsc.training.finite import finite_arrays
from plsc.training.parts.part import Part, State
from plsc.training.step import StepResult
from plsc.utils.disk import check_space, saves_ahead
from plsc.utils.logging import get_logger

LAST_SAVE_PAUSES = (10, 60, 300)  # seconds before the save of the last step is tried again
MOST_FAILED_SAVES = 3  # in a row; all steps since the last checkpoint are lost when the run ends


class Saved(State):
    """The step of a checkpoint, and the best evaluation up to there."""

    saved: NonNegativeInt = 0
    best: Best | None = None


class Checkpoints(Part):
    """Writes checkpoints in `root`, and deletes the oldest.

    Args:
        every: steps between two checkpoints, besides those at the ends of epochs; None: there are no others. keep: newest
            ones that stay.
        weights: name of the state whose arrays are the weights to use, see store.Content.
        keeps_way_back: whether the newest checkpoint from before the last step that counted stays, too.
        on_disk: whether the class centres take space on the disk already.
        evaluator: says which checkpoint is the best.

    Attributes: `best`, the best main evaluation so far that is saved; None without one. `path`, of the newest
    checkpoint that this object has written; None without one.
    """

    name = "checkpoints"

    def __init__(
        self,
        root: Path,
        evaluator: Evaluator,
        *,
        every: int | None,
        keep: int,
        weights: str,
        keeps_way_back: bool,
        on_disk: bool,
    ):
        self.best: Best | None = None
        self.path: Path | None = None
        self._root = root
        self._evaluator = evaluator
        self._every = every
        self._keep = keep
        self._weights = weights
        self._keeps_way_back = keeps_way_back
        self._on_disk = on_disk
        self._saved = 0  # step of the newest checkpoint
        self._failed = 0  # saves since then

    def start(self, run: Any) -> None:
        """Refuse by UserError a disk without space for a checkpoint, and warn if there is space for too
        few."""
        if run.step == run.total_steps:
            return
        distributed.barrier()  # all banks have their space now
        periods = run.steps_per_epoch, self._every
        saves = saves_ahead(run.step, run.total_steps, *periods, most=self._keep + 1)
        what = "a checkpoint beside the class centres" if self._on_disk else "a checkpoint"
        check = partial(check_space, self._root, run.checkpoint_bytes(), saves, self._keep, what)
        warning = distributed.run_on_rank_0(check)
        if warning and distributed.rank() == 0:
            get_logger().warning(warning)

    def between(self, run: Any, result: StepResult) -> None:
        best = self._best(run.step)
        is_due = (
            run.step == run.total_steps or run.ends_epoch or (self._every and run.step % self._every == 0)
        )
        if is_due or best is not self.best:
            with run.pause():
                self.save(run, best)

    def end(self, run: Any) -> None:
        """Save the step at which the run was asked to stop. UserError if it cannot be saved."""
        if self._saved == run.step or not run.stopped:
            return
        with run.pause():
            self.save(run)
        if self._saved != run.step:
            raise UserError(
                f"stopped on {run.stopped} at step {run.step}, which could not be saved (see above); make space, and resume from the "
                "checkpoint before it"
            )

    def _best(self, step: int) -> Best | None:
        """Return the better of `best` and the main set's evaluation at this step, if there was one; of equal
        ones the first."""
        evaluator = self._evaluator
        value = evaluator.row[evaluator.metric] if evaluator.step == step else None
        if value is None:
            return self.best
        title = evaluator.main
        metric = evaluator.metric
        # A run that was resumed with another main set starts anew: the two cannot be compared.
        comparable = self.best and (self.best.set, self.best.metric) == (title, metric)
        if comparable and value <= self.best.value:
            return self.best
        return Best(step=step, set=title, metric=metric, value=value)

    def save(self, run: Any, best: Best | None = None) -> None:
        """Write a checkpoint, all ranks together, and delete the oldest, but not the best. One that cannot be
        written does not end the run. best: the new `best`, if it is written; None: unchanged."""
        best = best or self.best
        last = run.step == run.total_steps
        states = {name: owner.state_dict() for name, owner in run.stateful.items()}
        states[self.name] = Saved(saved=run.step, best=best).model_dump()
        rows = run.head.bank.state()
        arrays = [rows[name] for name in run.head.bank.names]
        for owner in {"backbone", self._weights}:
            arrays += states[owner].get("arrays", {}).values()
        if not distributed.every(finite_arrays(arrays)):
            line = f"checkpoint of step {run.step} not written: its weights are not finite"
            if last:
                raise UserError(
                    f"{line}; it was the last step: lower LRScheduler.learning_rate or Optimizer.weight_decay"
                )
            get_logger().error(line)
            return
        content = store.Content(
            step=run.step,
            epoch=run.epoch,
            states=states,
            rows=rows,
            shard=run.head.shard,
            config=run.cfg.plain(),
            preprocessing=run.dataset.preprocessing.to_json(),
            classes=class_names(run.dataset) if distributed.rank() == 0 else None,
            weights=self._weights,
        )
        ranks = store.Ranks(distributed.rank(), distributed.world_size(), distributed.gather_objects)
        try:
            write = partial(store.save, self._root, content, ranks)
            self.path = store.save_patiently(write, LAST_SAVE_PAUSES if last else ())
        except store.SaveError as error:
            self._failed += 1
            line = f"{error}; last good: {f'step {self._saved}' if self._saved else 'none'}"
            if last:
                raise store.SaveError(f"{line}; it was the last step: make space, and resume") from error
            if self._failed == MOST_FAILED_SAVES:
                raise store.SaveError(f"{line}; the third in a row: make space, and resume") from error
            get_logger().error(f"{line}; training goes on")
            return
        self._failed = 0
        self._saved = run.step
        self.best = best
        if distributed.rank() == 0:
            way_back = run.step - run.since_good if self._keeps_way_back else None
            store.prune(self._root, self._keep, [best.step] if best else [], way_back)
        distributed.barrier()  # so that no collective waits for a disk and times out
        get_logger().info(f"checkpoint {self.path}")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = Saved.model_validate(state)
        self.best = saved.best
        self._saved = saved.saved
