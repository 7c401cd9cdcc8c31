"""Average the weights of checkpoints of a run, network and class centres (Izmailov et al., "Averaging Weights
Leads to Wider Optima", 2018).

plsc ckpt average output --last 5 --output averaged
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from plsc.checkpoint.saved import Checkpoint
from plsc.checkpoint.store import Content, completed, save
from plsc.errors import UserError
from plsc.utils.bfloat16 import float32_of, nearest
from plsc.utils.sharding import ClassShard


def average(folders: Sequence[str], last: int | None, target: str) -> str:
    """Write the mean of checkpoints to the new folder `target`/step-XXXXXXXX; return a report.

    Each gives its weights to use, an average of them where the run had one. Numbers are added in float64;
    integers are the newest checkpoint's. The result is for everything but to resume a run.

    Args:
        folders: checkpoints, or the folder of a run.
        last: how many of the run's, the newest; None: all that are there.

    Raises UserError for fewer than two checkpoints, and for those of different networks or classes.
    """
    if Path(target).exists():
        raise UserError(f"{target}: is there already, and nothing is overwritten; name another folder")
    saved = sorted(map(Checkpoint.open, _paths(folders, last)), key=lambda checkpoint: checkpoint.step)
    newest, weights = saved[-1], [checkpoint.weights() for checkpoint in saved]
    for other in saved[:-1]:
        remedy = f"average checkpoints of one run (the newest is {newest.path.name})"
        sizes = newest.num_classes, newest.embedding_size
        other.check_matches(*sizes, backbone=weights[-1], head=newest.head_arrays, remedy=remedy)
        if (other.preprocessing, other.classes()) != (newest.preprocessing, newest.classes()):
            raise UserError(f"checkpoint {other.path.name} has other preprocessing or classes: {remedy}")
    mean = {name: _mean_of([each[name] for each in weights]) for name in weights[-1]}
    content = Content(
        step=newest.step,
        epoch=newest.epoch,
        states={"backbone": {"arrays": mean}},
        rows={name: _MeanRows(saved, name) for name in newest.head_arrays if name in ("centres", "bias")},
        shard=ClassShard(newest.num_classes, 0, newest.num_classes),
        config=newest.config,
        preprocessing=newest.preprocessing,
        classes=newest.classes(),
    )
    steps = ", ".join(f"{checkpoint.step:,}" for checkpoint in saved)
    return f"{save(target, content)}: the mean of {len(saved)} checkpoints, steps {steps}"


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
            f"{folders[0]}: has {len(paths)} checkpoint{'s' * (len(paths) != 1)}, {last or 2} are wanted; "
            "train with a larger Checkpoint.keep, or name the checkpoints"
        )
    return paths[-last:] if last else paths


class _MeanRows:
    """The mean of one of the head's arrays over checkpoints, computed for the rows that are asked for."""

    def __init__(self, saved: Sequence[Checkpoint], name: str):
        entry = saved[-1].head_arrays[name]
        self.dtype = entry.dtype
        self.code = entry.code
        self.shape = (saved[-1].num_classes, *entry.shape[1:])
        self._saved = saved
        self._name = name

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        return _mean_of([each.rows(self._name, rows.start, rows.stop) for each in self._saved])


def _mean_of(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean in the arrays' dtype, bfloat16's bits included; of integers the last."""
    last = arrays[-1]
    if last.dtype != np.uint16 and not np.issubdtype(last.dtype, np.floating):
        return last
    total = sum(float32_of(array).astype(np.float64) for array in arrays)
    mean = (total / len(arrays)).astype(float32_of(last).dtype)
    return nearest(mean) if last.dtype == np.uint16 else mean
