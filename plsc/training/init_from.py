"""Start a training with the weights of another run (Global.init_from), and its centres of the classes of the
same name. Classes that it does not know, and the states of all optimizers, start anew.

The same on any number of ranks: each reads the rows that its shard keeps. docs/training.md has a run to try.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import paddle

from plsc import distributed
from plsc.checkpoint.saved import Checkpoint
from plsc.checkpoint.tensorfile import format_lines, tensor_differences
from plsc.config import Config
from plsc.data.dataset import Dataset, class_names
from plsc.errors import UserError
from plsc.heads.config import HeadCfg, kind_of_head
from plsc.heads.softmax import SoftmaxHead
from plsc.training.start import START, find_start
from plsc.utils.bfloat16 import float32_of
from plsc.utils.logging import warn_on_rank_0
from plsc.utils.preprocessing import Preprocessing

_ROWS_AT_ONCE = 65_536  # of the centres


def start_from(cfg: Config, backbone: paddle.nn.Layer, head: SoftmaxHead, data: Dataset) -> list[str]:
    """Load the weights that Global.init_from names into `backbone` and `head` -> lines for the log. Every
    rank calls it.

    Raises UserError: no checkpoint there, a damaged one, another backbone, names that are not unique.
    """
    path = find_start(cfg)
    distributed.run_on_rank_0(lambda: Checkpoint.open(path).path)  # reads every byte
    saved = Checkpoint.open(path, verify=False)
    lines = [_load_backbone(cfg, backbone, saved, data.preprocessing)]
    there, here = saved.classes(), class_names(data)
    if why := _why_new(cfg, saved, there, here):
        return [*lines, f"the head is new: {why}"]
    place = {name: number for number, name in enumerate(there)}
    row_C = np.array([place.pop(name, -1) for name in here])
    dropped, kept = [*place], int((row_C >= 0).sum())
    if not kept:
        why = f"no class of {path} ('{there[0]}', ...) is in the data ('{here[0]}', ...)"
        return [*lines, f"the head is new: {why}"]
    _keep(saved, head, row_C)
    gone = f" ({', '.join(dropped[:10])}{', ...' * (len(dropped) > 10)})" if dropped else ""
    count = f"{kept:,} kept by name, {len(row_C) - kept:,} new at random, {len(dropped):,} dropped{gone}"
    return [*lines, f"centres: {count}"]


def _load_backbone(
    cfg: Config, backbone: paddle.nn.Layer, saved: Checkpoint, preprocessing: Preprocessing
) -> str:
    """Load the checkpoint's weights -> a line for the log. UserError, a line for each tensor, if they are of
    another network."""
    where = cfg.Global.init_from
    own, arrays = backbone.state_dict(), saved.weights()
    network = type(backbone).__name__
    if not own.keys() & arrays.keys():
        raise UserError(f"{where}: none of its {len(arrays)} tensors is one of {network}'s", key=START)
    if differences := tensor_differences(arrays, own, "the checkpoint", network):
        raise UserError(format_lines(f"{START}: {where}", differences))
    for name, array in arrays.items():
        own[name].set_value(array)
    if saved.preprocessing.differences(preprocessing):
        warn_on_rank_0(f"{saved.path} was trained on {saved.preprocessing}, this run has {preprocessing}")
    return f"starting with the {len(arrays)} tensors of the backbone in {saved.path}, {saved.weights_file}"


def _why_new(
    cfg: Config, saved: Checkpoint, there: Sequence[str] | None, here: Sequence[str] | None
) -> str | None:
    """Say why no centre of a checkpoint can be kept; None where they can. UserError for two classes of one
    name."""
    if saved.num_classes == 0:
        return f"{saved.path} has no classes"
    for names, whose in ((there, f"the classes of {saved.path}"), (here, "the classes of the data")):
        if names is None:
            return f"{whose} have no names"
        if len(set(names)) < len(names):
            raise UserError(f"{START}: {whose} have a name twice; each class needs one of its own")
    return _other_head(cfg.Head, cfg.Model.embedding_size, saved)


def _other_head(section: HeadCfg, embedding_size: int, saved: Checkpoint) -> str | None:
    """Say why the rows of a checkpoint mean something else in this run's head; None where they do not."""
    width = saved.head_arrays["centres"].shape[1] + ("bias" in saved.head_arrays)
    here = section.row_size(embedding_size)
    name = saved.config.get("Head", {}).get("name")
    if name and (kind_of_head(name) == "softmax") != (section.kind == "softmax"):
        return f"the head there is {name}, this run's {section.name}"
    if width != here:
        return f"a class has {width} numbers there, in this run {here}"
    return None


def _keep(saved: Checkpoint, head: SoftmaxHead, row_C: np.ndarray) -> None:
    """Load this rank's share of the rows `row_C` of a checkpoint, -1 where a class keeps its own."""
    names = ("centres", "bias") if head.bank.bias else ("centres",)
    row_S = row_C[head.shard.start : head.shard.stop]
    state = head.bank.state()
    for first in range(0, len(row_S), _ROWS_AT_ONCE):
        rows = row_S[first : first + _ROWS_AT_ONCE]
        at = np.flatnonzero(rows >= 0)
        if not len(at):
            continue
        runs = np.split(rows[at], np.flatnonzero(np.diff(rows[at]) != 1) + 1)
        # Other rows of the block are written back: a bank loads by slices only, and may be bfloat16.
        block = {
            name: float32_of(np.array(array[first : first + len(rows)])) for name, array in state.items()
        }
        for name in names:
            kept = np.concatenate([saved.rows(name, int(run[0]), int(run[-1]) + 1) for run in runs])
            block[name][at] = float32_of(kept).reshape(len(at), *block[name].shape[1:])
        head.bank.load_rows(first, block)
