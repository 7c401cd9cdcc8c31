"""Write a run's checkpoints, and the evaluation of each checkpoint into its folder.

plsc/training/trainer.py decides when. If a checkpoint cannot be written, the run continues, unless the
checkpoint is the run's last one.

Try it: `plsc train`, then list output_dir/checkpoints.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np

from plsc import distributed
from plsc.checkpoint import store
from plsc.checkpoint.evaluation import Evaluation
from plsc.distributed.environment import by_paddles_launcher
from plsc.errors import UserError
from plsc.training.part import state_of
from plsc.utils.logging import get_logger, warn_on_rank_0

# A save that takes longer (in seconds) causes a warning. Paddle's launcher gives the ranks 33 s from SIGTERM
# to SIGKILL.
LONG_SAVE = 20


class Checkpoints:
    """Writes checkpoints to a run's folder, and deletes old ones.

    Args:
        root: folder for the checkpoints.
        keep: how many of the newest checkpoints to keep.
        weights: name of the state whose arrays are the network's weights, see `store.Content.weights`.

    Attributes:
        newest: step of the newest checkpoint that was written or resumed from, or 0 before the first.
    """

    def __init__(self, root: Path, keep: int, weights: str):
        self.newest = 0
        self._root = root
        self._keep = keep
        self._weights = weights
        self._warned = False  # whether the warning about a long save was given

    def add_evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Write an evaluation into a checkpoint's folder. Rank 0 calls it.

        If the newest checkpoint has another step, nothing is written. If the file cannot be written, a
        warning is logged.

        Args:
            step: the step whose weights were evaluated.
            evaluation: the result.
        """
        if self.newest != step:  # this step's checkpoint could not be written
            return
        try:
            evaluation.write(self._folder(step))
        except OSError as error:
            get_logger().warning(
                f"{self._folder(step)}: its evaluation cannot be written ({error.strerror}), so it is not "
                "compared with others"
            )

    def evaluated(self, step: int) -> bool:
        """Return whether the checkpoint of a step contains an evaluation."""
        return Evaluation.read(self._folder(step)) is not None

    def best(self) -> dict[str, Any] | None:
        """Return a dict with the best checkpoint's step, and its evaluation's set, metric and value. Return
        None if no checkpoint was evaluated."""
        path = store.best(self._root)
        made = path and Evaluation.read(path)
        return made and {"step": store.step_of(path), **made.model_dump(exclude={"threshold"})}

    def _folder(self, step: int) -> Path:
        return store.folder_of(self._root, step)

    def save(self, run: Any) -> None:
        """Write a checkpoint. Then delete all checkpoints except the newest `keep` and the best one. Every
        rank calls it.

        Args:
            run: the Trainer.

        Raises SaveError if the checkpoint cannot be written and the run ends at this step. At any other step
        the failure is logged, and training continues.
        """
        states = {name: state_of(owner) for name, owner in run.stateful.items()}
        content = store.Content(
            step=run.step,
            epoch=run.epoch,
            states=states,
            rows={name: _Finite(name, array) for name, array in run.head.bank.state().items()},
            num_classes=run.head.shard.num_classes,
            shard=(run.head.shard.start, run.head.shard.stop),
            config=run.cfg.plain(),
            preprocessing=run.dataset.preprocessing,
            classes=run.dataset.class_names if distributed.rank() == 0 else None,
            weights=self._weights,
        )
        began = time.monotonic()
        try:
            path = store.save(self._root, content, distributed.rank(), distributed.gather_objects)
        except store.SaveError as error:
            line = f"{error}; last good: {f'step {self.newest}' if self.newest else 'none'}"
            if run.stopped or run.step == run.total_steps:
                raise store.SaveError(f"{line}; it was the last step: {error.remedy}, and resume") from error
            get_logger().error(f"{line}; training continues")
            return
        self.newest = run.step
        if distributed.rank() == 0:
            store.prune(self._root, self._keep)
        distributed.barrier()  # a collective would time out if rank 0's disk is slow
        get_logger().info(f"checkpoint {path}")
        seconds = time.monotonic() - began
        if seconds > LONG_SAVE and by_paddles_launcher() and not self._warned:
            self._warned = True
            warn_on_rank_0(
                f"this checkpoint took {seconds:.0f} s; Paddle's launcher kills the ranks 33 s after "
                "SIGTERM, so a save after SIGTERM may not succeed: set Checkpoint.every_steps to lose less"
            )


class _Finite:
    """Reads an array's rows for a checkpoint. Raises UserError if a row is not finite.

    The rows are checked just before they are written, so they are read from memory only once.

    Args:
        name: name of the array.
        array: array [S, ...] with float32 numbers, or with the bits of bfloat16 numbers as uint16. It may
            also be an object whose slices are such arrays.
    """

    def __init__(self, name: str, array: Any):
        self.name = name
        self.array = array
        self.dtype = array.dtype
        self.shape = array.shape
        self.code = getattr(array, "code", None)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return the rows. Raises UserError if a number is not finite."""
        found = np.ascontiguousarray(self.array[rows])
        flat = found.reshape(-1)
        if found.dtype == np.uint16:
            finite = ((flat & 0x7F80) != 0x7F80).all()
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                total = flat @ flat  # faster than checking each number, but it may overflow
            finite = np.isfinite(total) or np.isfinite(flat).all()
        if not finite:
            raise UserError(f"a number of {self.name} is not finite")
        return found
