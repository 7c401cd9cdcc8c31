"""Write the checkpoints of a run, and know which one is the best. When, says plsc/training/trainer.py.

A checkpoint that cannot be written does not end the run, unless it is the last.
"""

from pathlib import Path
from typing import Any

from plsc import distributed
from plsc.checkpoint import store
from plsc.checkpoint.saved import Best
from plsc.training.evaluator import Evaluator
from plsc.training.part import state_of
from plsc.utils.logging import get_logger


class Checkpoints:
    """Writes checkpoints in a run's folder, and deletes the oldest.

    Args:
        root: the folder of the checkpoints. keep: how many, the newest.
        weights: name of the state whose arrays are the weights to use, see store.Content.

    Attributes: `newest`, the step of the newest, 0 without one; `best`, the best main evaluation so far that
    is saved, None without one.
    """

    def __init__(self, root: Path, keep: int, weights: str):
        self.newest = 0
        self.best: Best | None = None
        self._root = root
        self._keep = keep
        self._weights = weights

    def best_of(self, evaluator: Evaluator, step: int) -> Best | None:
        """Return the better of `best` and the main set's evaluation at this step, if there was one; of equal
        ones the first."""
        value = evaluator.row[evaluator.metric] if evaluator.step == step else None
        if value is None:
            return self.best
        made = Best(
            step=step,
            set=f"{evaluator.main}, {evaluator.sets[evaluator.main].count:,} images",
            metric=evaluator.metric,
            value=value,
        )
        # A run that was resumed with another main set, or more people in it, starts anew: the two cannot be
        # compared.
        comparable = self.best and (self.best.set, self.best.metric) == (made.set, made.metric)
        return self.best if comparable and value <= self.best.value else made

    def save(self, run: Any, best: Best | None = None) -> None:
        """Write a checkpoint, all ranks together, and delete the oldest, but not the best. One that cannot be
        written ends the run by UserError only where the run ends anyhow. best: the new `best`, if it is
        written; None: unchanged."""
        best = best or self.best
        states = {name: state_of(owner) for name, owner in run.stateful.items()}
        states["checkpoints"] = {"best": best and best.model_dump()}
        content = store.Content(
            step=run.step,
            epoch=run.epoch,
            states=states,
            rows=run.head.bank.state(),
            num_classes=run.head.shard.num_classes,
            shard=(run.head.shard.start, run.head.shard.stop),
            config=run.cfg.plain(),
            preprocessing=run.dataset.preprocessing,
            classes=run.dataset.class_names if distributed.rank() == 0 else None,
            weights=self._weights,
        )
        try:
            path = store.save(self._root, content, distributed.rank(), distributed.gather_objects)
        except store.SaveError as error:
            line = f"{error}; last good: {f'step {self.newest}' if self.newest else 'none'}"
            if run.stopped or run.step == run.total_steps:
                raise store.SaveError(f"{line}; it was the last step: make space, and resume") from error
            get_logger().error(f"{line}; training goes on")
            return
        self.newest = run.step
        self.best = best
        if distributed.rank() == 0:
            store.prune(self._root, self._keep, best.step if best else None)
        distributed.barrier()  # so that no collective waits for a disk and times out
        get_logger().info(f"checkpoint {path}")
