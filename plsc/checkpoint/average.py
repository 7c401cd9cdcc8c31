"""Average the network weights and class centres of a run's checkpoints.

The method comes from Izmailov et al., "Averaging Weights Leads to Wider Optima", 2018. Try it:

plsc ckpt average output --last 5 --output averaged
"""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote

import numpy as np

from plsc.checkpoint.saved import Checkpoint
from plsc.checkpoint.store import Content, completed, new_folder, save
from plsc.errors import UserError
from plsc.native.bfloat16 import float32_of, nearest


def average(run: str, last: int | None, target: str) -> str:
    """Write the mean of a run's checkpoints to the new folder `target`/step-XXXXXXXX. Return a report.

    Each checkpoint contributes the weights that are used outside training. These are a running average if
    the run kept one. Floating-point numbers are added in float64. Integers are copied from the newest
    checkpoint. The result can be used for everything except to resume a run.

    Args:
        run: the run's folder.
        last: how many checkpoints to average, counted from the newest. None averages all.
        target: folder to create.

    Raises UserError if `target` exists, if fewer than two checkpoints are asked for, or if the run has fewer
    than that. Raises UserError if the mean cannot be written. `target` then does not exist.
    """
    if Path(target).exists():
        raise UserError(f"{target}: exists already, and nothing is overwritten; name another folder")
    paths = completed(Path(run, "checkpoints"))
    wanted = max(2, len(paths)) if last is None else last
    if wanted < 2 or wanted > len(paths):
        raise UserError(
            f"{run}: has {len(paths)} checkpoints, cannot average {wanted}: give --last 2 or more, and "
            "train with a larger Checkpoint.keep"
        )
    saved = [Checkpoint.open(path) for path in paths[-wanted:]]
    newest, weights = saved[-1], [checkpoint.weights() for checkpoint in saved]
    mean = {name: _mean_of([each[name] for each in weights]) for name in weights[-1]}
    content = Content(
        step=newest.step,
        epoch=newest.epoch,
        states={"backbone": {"arrays": mean}},
        rows={name: _MeanRows(saved, name) for name in newest.head_arrays if name in ("centres", "bias")},
        num_classes=newest.num_classes,
        shard=(0, newest.num_classes),
        config=newest.config,
        preprocessing=newest.preprocessing,
        classes=newest.classes(),
    )
    steps = ", ".join(f"{checkpoint.step:,}" for checkpoint in saved)
    with new_folder(Path(target)) as beside:
        name = save(beside, content).name
    path = Path(target, name)
    use = f"use it by plsc eval -c {quote(run)} -o {quote(f'Global.checkpoint={path}')}"
    return f"{path}: the mean of {len(saved)} checkpoints, steps {steps}; {use}"


class _MeanRows:
    """Present the mean of one head array over several checkpoints. Rows are computed when they are read."""

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
    """Return the mean of the arrays in their own dtype.

    uint16 arrays contain bfloat16 bits, so their mean is one too. For integer arrays, return
    the last one.
    """
    last = arrays[-1]
    if last.dtype != np.uint16 and not np.issubdtype(last.dtype, np.floating):
        return last
    total = sum(float32_of(array).astype(np.float64) for array in arrays)
    mean = (total / len(arrays)).astype(float32_of(last).dtype)
    return nearest(mean) if last.dtype == np.uint16 else mean
