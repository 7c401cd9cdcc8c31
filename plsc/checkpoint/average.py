"""Average the weights of checkpoints of a run, network and class centres (Izmailov et al., "Averaging Weights
Leads to Wider Optima", 2018).

plsc ckpt average output --last 5 --output averaged
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from plsc.checkpoint.manifest import BACKBONE, file_of
from plsc.checkpoint.reshard import Head, fields_of, others_of, write_checkpoint
from plsc.checkpoint.saved import Checkpoint
from plsc.checkpoint.store import completed
from plsc.checkpoint.tensorfile import layout
from plsc.errors import UserError
from plsc.utils.bfloat16 import float32_of, nearest

_AVERAGED = ("centres", "bias")  # of the head's rows; the others are its optimizer's


def average(folders: Sequence[str], last: int | None, target: str) -> str:
    """Write the mean of checkpoints to the new folder `target`; return a report.

    Each gives its weights to use, an average of them where the run had one. Numbers are added in float64;
    integers, and the state of the centres' optimizer, are the newest checkpoint's. The result is for
    everything but to resume a run.

    Args:
        folders: checkpoints, or the folder of a run.
        last: how many of the run's, the newest; None: all that are there.

    Raises UserError for fewer than two checkpoints, and for those of different networks or classes.
    """
    saved = sorted(map(Checkpoint.open, _paths(folders, last)), key=lambda checkpoint: checkpoint.step)
    newest = saved[-1]
    weights = newest.weights()
    for other in saved[:-1]:
        _refuse_other(newest, other, weights)
    others = [other.weights() for other in saved[:-1]]
    mean = {name: _mean_of([*(other[name] for other in others), weights[name]]) for name in weights}
    names = {name: blocks for name, blocks in others_of(newest).items() if name == "classes.json"}
    files = {file_of(BACKBONE): layout(mean), **names}
    fields = {**fields_of(newest), "state": {}, "weights": BACKBONE}
    ranges = [(part.start, part.stop) for part in newest.manifest.heads]

    def read(name: str, start: int, stop: int) -> np.ndarray:
        if name not in _AVERAGED:
            return newest.rows(name, start, stop)
        return _mean_of([other.rows(name, start, stop) for other in saved])

    made = write_checkpoint(target, ranges, Head(newest.head_arrays, read), files, fields)
    steps = ", ".join(f"{checkpoint.step:,}" for checkpoint in saved)
    return f"{made}: the mean of {len(saved)} checkpoints, steps {steps}"


def _paths(folders: Sequence[str], last: int | None) -> list[Path]:
    """Find the checkpoints. UserError for too few, or `last` without a run."""
    runs = [folder for folder in folders if Path(folder, "checkpoints").is_dir()]
    if last is not None and last < 2:
        raise UserError(f"--last: must be 2 or more (got {last})")
    if len(folders) > 1 and (runs or last):
        raise UserError(f"{(runs or folders)[0]}: name one run, with --last, or checkpoints")
    paths = [*completed(Path(folders[0], "checkpoints"))] if runs else [*map(Path, folders)]
    if len(paths) < (last or 2):
        raise UserError(
            f"{folders[0]}: has {len(paths)} checkpoint{'s' * (len(paths) != 1)}, {last or 2} are wanted; train with a larger Checkpoint.keep, or "
            "name the checkpoints"
        )
    return paths[-last:] if last else paths


def _refuse_other(newest: Checkpoint, other: Checkpoint, weights: dict[str, np.ndarray]) -> None:
    """Refuse by UserError a checkpoint that has no mean with the newest one."""
    other.check_matches(
        newest.num_classes,
        newest.embedding_size,
        backbone=weights,
        head=newest.head_arrays,
        remedy=f"average checkpoints of one run (the newest is {newest.path.name})",
    )
    for what in ("preprocessing", "classes"):
        values = [getattr(checkpoint, what) for checkpoint in (newest, other)]
        ours, theirs = (value() if callable(value) else value for value in values)
        if ours != theirs:
            raise UserError(
                f"checkpoint {other.path.name} has other {what} than {newest.path.name}; average checkpoints of one run"
            )


def _mean_of(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean in the arrays' dtype, bfloat16's bits included; of integers the last."""
    last = arrays[-1]
    if last.dtype != np.uint16 and not np.issubdtype(last.dtype, np.floating):
        return last
    total = sum(float32_of(array).astype(np.float64) for array in arrays)
    mean = (total / len(arrays)).astype(float32_of(last).dtype)
    return nearest(mean) if last.dtype == np.uint16 else mean
