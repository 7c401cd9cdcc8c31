"""Start a training with another run's weights (Global.init_from), and with its centres for the classes
that have the same name.

Other classes' centres, and the states of all optimizers, start as in a new run. The result does not
depend on the world size, because each rank reads the rows that its shard keeps. docs/training.md has a
run to try.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import paddle

from plsc.checkpoint.saved import Checkpoint
from plsc.checkpoint.store import find
from plsc.data.dataset import Dataset
from plsc.errors import UserError
from plsc.heads.softmax import SoftmaxHead
from plsc.native.bfloat16 import float32_of
from plsc.training.load_weights import ROWS_AT_ONCE, load_backbone
from plsc.utils.logging import warn_on_rank_0


def find_weights(folder: str | Path) -> Path:
    """Find Global.init_from's checkpoint. Rank 0 alone calls it, because it verifies every byte.

    Raises UserError if there is no checkpoint, or if it is damaged.

    Args:
        folder: a checkpoint's or a run's folder.
    """
    return find(Path(), folder)


def initialise_from(path: Path, backbone: paddle.nn.Layer, head: SoftmaxHead, data: Dataset) -> list[str]:
    """Load a checkpoint's weights into a backbone and a head. Every rank calls it.

    Args:
        path: the checkpoint that `find_weights` found.
        backbone: the layer that gets the weights.
        head: the head that gets the centres.
        data: this run's data set, for its class names.

    Returns lines for the log.

    Raises UserError if the checkpoint has a different backbone, and if class names are not unique.
    """
    saved = Checkpoint.open(path, verify=False)
    load_backbone(backbone, saved)
    if saved.preprocessing.differences(data.preprocessing):
        warn_on_rank_0(f"{path} was trained on {saved.preprocessing}, this run has {data.preprocessing}")
    lines = [f"starting with the weights of {path}, {saved.weights_file}"]
    there, here = saved.classes(), data.class_names
    if why := _why_new(head, saved, there, here):
        return [*lines, f"the head is new: {why}"]
    place = {name: number for number, name in enumerate(there)}
    row_C = np.array([place.pop(name, -1) for name in here])
    kept = int((row_C >= 0).sum())
    _keep(saved, head, row_C)
    return [
        *lines,
        f"centres: {kept:,} kept by name, {len(row_C) - kept:,} new at random, {len(place):,} dropped",
    ]


def _why_new(
    head: SoftmaxHead,
    saved: Checkpoint,
    there: Sequence[str] | None,
    here: Sequence[str] | None,
) -> str | None:
    """Return why no centre in a checkpoint can be kept, or None if centres can be kept.

    Raises UserError if two classes have the same name.

    Args:
        head: this run's head.
        saved: the checkpoint.
        there: the checkpoint's class names, or None.
        here: this run's class names, or None.
    """
    if saved.num_classes == 0:
        return f"{saved.path} has no classes"
    for names, whose in ((there, f"the classes of {saved.path}"), (here, "the classes of the data")):
        if names is None:
            return f"{whose} have no names"
        if len(set(names)) < len(names):
            raise UserError(f"{whose} contain a name twice; each class needs its own", "Global.init_from")
    if not set(there) & set(here):
        return f"no class of {saved.path} ('{there[0]}', ...) is in the data ('{here[0]}', ...)"
    name = saved.config.get("Head", {}).get("name")
    if name and (name.removeprefix("dist_") == "softmax") != (head.margin is None):
        return f"the head there is {name}, this run's has {'a' if head.margin else 'no'} margin"
    width = saved.head_arrays["centres"].shape[1] + ("bias" in saved.head_arrays)
    own = head.bank.width + head.bank.bias
    return f"a class has {width} numbers there, in this run {own}" if width != own else None


def _keep(saved: Checkpoint, head: SoftmaxHead, row_C: np.ndarray) -> None:
    """Load this rank's share of a checkpoint's rows into a head.

    Args:
        saved: the checkpoint.
        head: the head that gets the rows.
        row_C: for each class in this run, its row in the checkpoint, or -1 if the class keeps its new centre.
    """
    row_S = row_C[head.shard.start : head.shard.stop]
    state = head.bank.state()
    for first in range(0, len(row_S), ROWS_AT_ONCE):
        rows = row_S[first : first + ROWS_AT_ONCE]
        at = np.flatnonzero(rows >= 0)
        if not len(at):
            continue
        runs = np.split(rows[at], np.flatnonzero(np.diff(rows[at]) != 1) + 1)
        # A bank loads only whole slices, so the block's other rows are read and written back. They may be
        # bfloat16.
        block = {
            name: float32_of(np.array(array[first : first + len(rows)])) for name, array in state.items()
        }
        for name in head.bank.names:
            kept = np.concatenate([saved.rows(name, int(run[0]), int(run[-1]) + 1) for run in runs])
            block[name][at] = float32_of(kept).reshape(len(at), *block[name].shape[1:])
        head.bank.load_rows(first, block)
