"""Write the checkpoints of a run, and know which one is the best. When, says plsc/training/trainer.py.

A checkpoint that cannot be written does not end the run, unless it is the last, or the third in a row.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt

from plsc import distributed
from plsc.checkpoint import store
from plsc.checkpoint.saved import Best
from plsc.config import Config
from plsc.data.dataset import class_names
from plsc.errors import UserError
from plsc.training.evaluator import Evaluator
from plsc.training.optim import checkpoint_numbers
from plsc.training.part import State
from plsc.utils.disk import no_space
from plsc.utils.logging import get_logger

MOST_FAILED_SAVES = 3  # in a row; all steps since the last checkpoint are lost when the run ends


class Saved(State):
    """The step of a checkpoint, and the best evaluation up to there."""

    saved: NonNegativeInt = 0
    best: Best | None = None


class Checkpoints:
    """Writes checkpoints in a run's folder, and deletes the oldest.

    Args:
        cfg: of the run.
        weights: name of the state whose arrays are the weights to use, see store.Content.

    Attributes: `best`, the best main evaluation so far that is saved; None without one.
    """

    def __init__(self, cfg: Config, weights: str):
        self.best: Best | None = None
        self._root = Path(cfg.Global.output_dir, "checkpoints")
        self._section = cfg.Checkpoint
        self._weights = weights
        self._saved = 0  # step of the newest checkpoint
        self._failed = 0  # saves since then

    def check_space(self, run: Any) -> None:
        """Refuse by UserError a disk without space for a checkpoint. All ranks call it, when the banks have
        their space."""
        if run.step == run.total_steps:
            return
        distributed.barrier()
        bank = run.head.bank
        of_classes = bank.itemsize * bank.numbers * run.head.shard.num_classes
        size = of_classes + 4 * checkpoint_numbers(run.optimizer, run.backbone, self._weights != "backbone")
        distributed.run_on_rank_0(partial(self._refuse_full_disk, size))

    def _refuse_full_disk(self, need: int) -> None:
        # Files of a killed save: the next save removes them before it writes.
        left = sum(file.stat().st_size for file in self._root.glob("step-*.tmp/*"))
        if lack := no_space(self._root, need - left):
            raise UserError(
                f"{self._root}: no space for a checkpoint ({lack}); free some space, "
                "or set another Global.output_dir"
            )

    def save_where_stopped(self, run: Any) -> None:
        """Save the step at which the run was asked to stop. UserError if it cannot be saved."""
        if self._saved == run.step:
            return
        self.save(run)
        if self._saved != run.step:
            raise UserError(
                f"stopped on {run.stopped} at step {run.step}, which could not be saved (see above); make "
                "space, and "
                "resume from the checkpoint before it"
            )

    def best_of(self, evaluator: Evaluator, step: int) -> Best | None:
        """Return the better of `best` and the main set's evaluation at this step, if there was one; of equal
        ones the first."""
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
        states["checkpoints"] = Saved(saved=run.step, best=best).model_dump()
        content = store.Content(
            step=run.step,
            epoch=run.epoch,
            states=states,
            rows=run.head.bank.state(),
            shard=run.head.shard,
            config=run.cfg.plain(),
            preprocessing=run.dataset.preprocessing,
            classes=class_names(run.dataset) if distributed.rank() == 0 else None,
            weights=self._weights,
        )
        ranks = store.Ranks(distributed.rank(), distributed.world_size(), distributed.gather_objects)
        try:
            path = store.save(self._root, content, ranks)
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
            store.prune(self._root, self._section.keep, [best.step] if best else [])
        distributed.barrier()  # so that no collective waits for a disk and times out
        get_logger().info(f"checkpoint {path}")

    def state_dict(self) -> dict[str, Any]:
        """Return the newest step and the best one, as `save` notes them."""
        return Saved(saved=self._saved, best=self.best).model_dump()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = Saved.model_validate(state)
        self.best = saved.best
        self._saved = saved.saved
