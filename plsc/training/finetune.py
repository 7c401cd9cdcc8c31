"""Start a training (Global.init_from) from another run's backbone, and from its centres of the classes of the
same name.

    kept     a class of both runs: its row, bit for bit; its optimizer state is 0 like the backbone's, which is not taken over either
    new      the mean of the normalised embeddings of some of its images, with the mean length of the kept centres; or random
    dropped  a class that is not in the data any more

The same on any number of ranks: each reads the rows that its shard keeps, new classes go through the backbone
in groups that do not depend on the ranks, and lengths are added up in whole numbers. docs/training.md has a
run to try.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import paddle

from plsc import distributed
from plsc.checkpoint.class_names import format_names, match_names, pick_rows, refuse_duplicates
from plsc.checkpoint.manifest import BACKBONE
from plsc.checkpoint.saved import Checkpoint
from plsc.checkpoint.tensorfile import format_lines, tensor_differences
from plsc.config import Config
from plsc.config.run import GlobalCfg
from plsc.data.dataset import Dataset, class_names
from plsc.data.preprocessing import Preprocessing
from plsc.errors import CorruptImageError, UserError
from plsc.heads.config import HeadCfg, kind_of_head
from plsc.heads.softmax import SoftmaxHead
from plsc.training.embed import ahead, to_input
from plsc.utils.atomic_write import replace_file
from plsc.utils.bfloat16 import float32_of
from plsc.utils.logging import get_logger
from plsc.utils.sharding import split
from plsc.utils.vectors import unit_rows

IMAGES = 16  # of a new class, evenly spread over all of its images
_GROUP = 8  # new classes whose images are one batch of the backbone
_CLASSES_AT_ONCE = (
    512 * _GROUP
)  # new classes whose means are in memory at once, on every rank; a line in the log for each so many
_ROWS_AT_ONCE = 65_536  # of the centres
_UNIT = 2.0**-24  # lengths are added up in whole multiples of it: their sum does not depend on the order


class Start(NamedTuple):
    """The start of a run: lines for its log, the content of identities.json, {} where the head is new, its
    first step, and states of parts that go on."""

    lines: list[str]
    identities: dict
    step: int = 0
    states: Mapping[str, dict] = MappingProxyType({})

    def record(self, folder: Path) -> None:
        """Log the lines, and write `folder`/identities.json. Rank 0 calls it."""
        for line in self.lines:
            get_logger().info(line)
        if self.identities:
            text = json.dumps(self.identities, indent=1, ensure_ascii=False) + "\n"
            replace_file(folder / "identities.json", text.encode())


class Match(NamedTuple):
    """The rows of a checkpoint that this run takes over.

    row_C: the row of each class of this run, -1 for none, int64 [C]. dropped: the names of the other rows'
    classes. nothing: why no row is taken over, "" if some are.
    """

    row_C: np.ndarray
    dropped: list[str]
    nothing: str = ""


def start_from(cfg: Config, backbone: paddle.nn.Layer, head: SoftmaxHead, data: Dataset) -> Start:
    """Load the fitting weights of the checkpoint Global.init_from into `backbone` and `head`. Every rank
    calls it.

    Raises UserError: a damaged checkpoint, another backbone, centres that do not fit this head, names that
    are not unique.
    """
    path = cfg.Global.init_from
    saved = _open(path)
    arrays, names, match = _what_fits(cfg, saved, backbone, data)
    lines = [init_backbone(backbone, saved, arrays, data.preprocessing)]
    kept = int((match.row_C >= 0).sum())
    lines += _take_margin(cfg, saved, head) if kept else [f"the head is new: {match.nothing}"]
    length, bias = _keep(saved, head, match.row_C)
    begin = (saved.step, {"rollback": saved.plain("rollback")}) if cfg.Global.keep_step else (0, {})
    new = np.flatnonzero(match.row_C < 0)
    if (cfg.Global.new_centres or ("mean" if kept else "random")) == "random":
        how, random = "at random", new.tolist()
    else:
        how = f"from the mean embeddings of at most {IMAGES} images each"
        random = set_means(backbone, head, data, new, length, bias)
    if not kept and len(random) == data.num_classes:
        return Start(lines, {}, *begin)
    names = names or [f"class {number}" for number in range(data.num_classes)]
    by = f" by {cfg.Global.keep_centres or 'name'}" if kept else ""
    gone = f" ({format_names(match.dropped)})" if match.dropped else ""
    lines.append(
        f"centres: {kept:,} kept{by}, {len(new):,} new {how}, {len(match.dropped):,} dropped{gone}; all in identities.json"
    )
    if 0 < len(random) < len(new):
        without = format_names([names[number] for number in random])
        lines.append(
            f"centres: {len(random):,} of the new have no readable image and start at random: {without}"
        )
    listed = {
        "new": [names[number] for number in new.tolist()],
        "random": [names[number] for number in random],
    }
    return Start(lines, {"init_from": path, "kept": kept, **listed, "dropped": match.dropped}, *begin)


def _open(path: str) -> Checkpoint:
    """Open a checkpoint on every rank; rank 0 alone reads every byte."""
    distributed.run_on_rank_0(lambda: Checkpoint.open(path).path)
    return Checkpoint.open(path, verify=False)


def refuse_last_step(step: int, total_steps: int) -> None:
    """Refuse by UserError to begin at a step after which none is left."""
    if step >= total_steps:
        raise UserError(
            f"Global.keep_step: nothing is left to train after step {step}, since this run ends at step {total_steps}; raise "
            "Global.epochs or Global.max_steps"
        )


def check_start(cfg: Config, backbone: paddle.nn.Layer, data: Dataset, total_steps: int) -> str:
    """Describe in a line what `start_from` would load, without loading it. Reads every byte of the
    checkpoint."""
    saved = Checkpoint.open(cfg.Global.init_from)
    if cfg.Global.keep_step:
        refuse_last_step(saved.step, total_steps)
    arrays, _, match = _what_fits(cfg, saved, backbone, data)
    kept = int((match.row_C >= 0).sum())
    line = f"{saved.path}: the {len(arrays)} tensors of the backbone; "
    if not kept:
        return f"{line}the head is new: {match.nothing}"
    by = cfg.Global.keep_centres or "name"
    return f"{line}centres: {kept:,} kept by {by}, {data.num_classes - kept:,} new, {len(match.dropped):,} dropped"


def _what_fits(
    cfg: Config, saved: Checkpoint, backbone: paddle.nn.Layer, data: Dataset
) -> tuple[dict[str, np.ndarray], list[str] | None, Match]:
    """Find the checkpoint's tensors for `backbone`, the names of the data's classes, and the rows for them;
    UserError if something does not fit."""
    where = f"Global.init_from: {cfg.Global.init_from}"
    arrays, names = fitting_arrays(backbone, saved, where), class_names(data)
    match = match_classes(cfg.Global, saved, names, data.num_classes)
    if (match.row_C >= 0).any():
        refuse_other_head(
            cfg.Head,
            cfg.Model.embedding_size,
            saved,
            where,
            "set Global.keep_centres=none to start with its backbone alone",
        )
    return arrays, names, match


def fitting_arrays(backbone: paddle.nn.Layer, saved: Checkpoint, where: str) -> dict[str, np.ndarray]:
    """Find the checkpoint's tensors for `backbone`; UserError, a line for each of them, if they are of
    another network."""
    own = backbone.state_dict()
    arrays = saved.weights()
    network = type(backbone).__name__
    if not own.keys() & arrays.keys():
        raise UserError(f"{where}: none of its {len(arrays)} tensors is one of {network}'s")
    if lines := tensor_differences(arrays, own, "the checkpoint", network):
        raise UserError(format_lines(where, lines))
    return arrays


def init_backbone(
    backbone: paddle.nn.Layer, saved: Checkpoint, arrays: dict, preprocessing: Preprocessing
) -> str:
    """Load the checkpoint's weights, which fit, into `backbone` -> a line for the log."""
    own = backbone.state_dict()
    for name, array in arrays.items():
        own[name].set_value(array)
    if Preprocessing.from_json(saved.preprocessing).differences(preprocessing):
        get_logger().warning(
            f"{saved.path} was trained on samples {saved.preprocessing}, this run has {preprocessing.to_json()}"
        )
    averaged = f", {saved.weights_file}" if saved.manifest.weights != BACKBONE else ""
    return f"starting with the {len(arrays)} tensors of the backbone in {saved.path}{averaged}"


def match_classes(cfg: GlobalCfg, saved: Checkpoint, here: list[str] | None, num_classes: int) -> Match:
    """Match the classes of this run, whose names are `here`, with the rows of the checkpoint; each row is
    kept or dropped.

    Raises UserError if two classes have one name; or if only folders elsewhere have the same names, and
    keep_centres does not say whether they are the same people.
    """
    none, there = np.full(num_classes, -1, np.int64), saved.classes()
    by_number = there or [f"class {number}" for number in range(saved.num_classes)]
    remedy = "; Global.keep_centres: number takes class n of it for class n of the data"
    if cfg.keep_centres == "none":
        return Match(none, [], "Global.keep_centres is none")
    if saved.num_classes == 0:
        return Match(none, [], f"{saved.path} has none")
    if cfg.keep_centres == "number":
        row_C = np.arange(num_classes)
        return Match(np.where(row_C < saved.num_classes, row_C, -1), by_number[num_classes:])
    if there is None:
        return Match(
            none,
            [],
            f"the classes of {saved.path} have no names{remedy}",
        )
    if here is None:
        return Match(none, [], f"the classes of the data have no names{remedy}")
    for names, whose in ((there, str(saved.path)), (here, "the data")):
        refuse_duplicates(names, f"Global.keep_centres: {whose}")
    row_C, dropped = match_names(there, here)
    if len(dropped) < len(there):
        return Match(row_C, dropped)
    apart = f"no class of {saved.path} ('{there[0]}', ...) is in the data ('{here[0]}', ...)"
    # Folders that differ in nothing but a number are named by their whole paths, and may have been moved.
    folders = [[os.path.basename(name) for name in names] for names in (there, here)]
    if all(len(set(names)) == len(names) for names in folders):
        row_C, dropped = match_names(*folders)
    if len(dropped) == len(there):
        return Match(row_C, there, apart)
    if cfg.keep_centres is None:
        raise UserError(
            f"Global.keep_centres: {apart}, but {len(there) - len(dropped):,} folders have the same names: set name where they were "
            "moved or copied, none where these are other people"
        )
    return Match(row_C, dropped)


def refuse_other_head(
    section: HeadCfg, embedding_size: int, saved: Checkpoint, where: str, remedy: str
) -> None:
    """Refuse by UserError centres whose rows have another meaning in this run's head."""
    theirs = saved.head_arrays.keys() & {"centres", "bias"}
    ours = {"centres", "bias"} if section.bias else {"centres"}
    width, here = saved.head_arrays["centres"].shape[1], section.row_size(embedding_size)
    name = saved.config.get("Head", {}).get("name")
    differs = []
    if name and (kind_of_head(name) == "softmax") != (section.kind == "softmax"):
        differs.append(f"the head is {name}, this run's {section.name}")
    if width != here:
        differs.append(f"a class has {width} numbers, in this run {here} (Head.sub_centres)")
    if theirs != ours:
        differs.append("a bias is in one of the two only (Head.bias)")
    if differs:
        raise UserError(
            f"{where}: its centres mean something else there: {'; '.join(differs)}; make them alike, or {remedy}"
        )


def _take_margin(cfg: Config, saved: Checkpoint, head: SoftmaxHead) -> list[str]:
    """Load the running statistics of the same margin, which describe the backbone -> a line for the log, if
    there are any."""
    statistics = saved.plain("margin")
    name = saved.config.get("Head", {}).get("name", "")
    alike = kind_of_head(name) == cfg.Head.kind
    if not (statistics and head.margin and alike and statistics.keys() == head.margin.state_dict().keys()):
        return []
    head.margin.load_state_dict(statistics)
    return [
        f"margin: its statistics go on from {', '.join(f'{key} {value:.4g}' for key, value in statistics.items())}"
    ]


def take_centres(
    saved: Checkpoint, row_C: np.ndarray, head: SoftmaxHead, backbone: paddle.nn.Layer, data: Dataset
) -> list[int]:
    """Set the centres of all classes: the rows `row_C` of the checkpoint, and where that is -1 the mean
    embeddings by `backbone`, as long as the others -> the classes without a readable image, which stay. Every
    rank calls it."""
    length, bias = _keep(saved, head, row_C)
    return set_means(backbone, head, data, np.flatnonzero(row_C < 0), length, bias)


# -- rows
# -------------------------------------------------------------------------------------------------------------------


def _keep(saved: Checkpoint, head: SoftmaxHead, row_C: np.ndarray) -> tuple[float, float]:
    """Load the kept rows -> mean length and mean bias of these centres, or of the initial ones if none is
    kept."""
    shard, state = head.shard, head.bank.state()
    names = ("centres", "bias") if head.bank.bias else ("centres",)
    row_S, keeps = row_C[shard.start : shard.stop], bool((row_C >= 0).any())
    sums = [0, 0, 0]  # lengths, biases, classes
    for at in _blocks(np.flatnonzero(row_S >= 0) if keeps else np.arange(shard.size)):
        if keeps:
            rows = {name: float32_of(pick_rows(partial(saved.rows, name), row_S[at])) for name in names}
            _put(head, state, at, rows)
        else:
            rows = {name: float32_of(state[name][at[0] : at[-1] + 1]) for name in names}
        centres = rows["centres"].reshape(len(at) * head.spec.sub_centres, -1).astype(np.float64)
        sums[0] += _whole(np.linalg.norm(centres, axis=1))
        sums[1] += _whole(rows["bias"]) if head.bank.bias else 0
        sums[2] += len(at)
    length, bias, count = (sum(parts) for parts in zip(*distributed.gather_objects(sums)))
    return _UNIT * length / (count * head.spec.sub_centres), _UNIT * bias / count


def _whole(values: np.ndarray) -> int:
    return int(np.rint(values.astype(np.float64) / _UNIT).astype(np.int64).sum())


def _blocks(rising: np.ndarray) -> Iterator[np.ndarray]:
    """Cut the row numbers where a block of _ROWS_AT_ONCE rows of the shard ends."""
    parts = np.split(rising, np.flatnonzero(np.diff(rising // _ROWS_AT_ONCE)) + 1)
    return (part for part in parts if len(part))


def _put(head: SoftmaxHead, state: dict, at: np.ndarray, rows: dict[str, np.ndarray]) -> None:
    """Overwrite the rows `at` of the shard (rising, in one block), or only the first numbers of each if
    `rows` are narrower.

    The other rows of the block are written back unchanged: `state` can be read by slices only, and may be
    bfloat16."""
    first, stop = int(at[0]), int(at[-1]) + 1
    block = {name: float32_of(np.array(array[first:stop])) for name, array in state.items()}
    for name, values in rows.items():
        block[name].reshape(stop - first, -1)[at - first, : values[0].size] = values.reshape(len(at), -1)
    head.bank.load_rows(first, block)


# -- new classes
# ------------------------------------------------------------------------------------------------------------


def set_means(
    backbone: paddle.nn.Layer, head: SoftmaxHead, data: Dataset, new: np.ndarray, length: float, bias: float
) -> list[int]:
    """Set the new classes' centres, with this length and bias -> the classes without a readable image, whose
    centres stay random.

    Of sub-centres only the first is set; the others stay random, as they do in training where a class has one
    kind of images.
    """
    without: list[int] = []
    for begin in range(0, len(new), _CLASSES_AT_ONCE):
        if len(new) > _CLASSES_AT_ONCE:
            get_logger().info(f"centres: means of {begin:,} of {len(new):,} new classes are done")
        classes = new[begin : begin + _CLASSES_AT_ONCE]
        unit_nD = directions(backbone, data, classes)
        known = unit_nD.any(axis=1)
        without += classes[~known].tolist()
        inside = known & (classes >= head.shard.start) & (classes < head.shard.stop)
        state = head.bank.state()
        for at in _blocks(classes[inside] - head.shard.start):
            centres = length * unit_nD[np.searchsorted(classes, at + head.shard.start)]
            biases = {"bias": np.full(len(at), bias)} if head.bank.bias else {}
            _put(head, state, at, {"centres": centres, **biases})
    return without


def directions(backbone: paddle.nn.Layer, data: Dataset, classes: np.ndarray) -> np.ndarray:
    """Compute the mean of the normalised embeddings of at most IMAGES images of each class, normalised:
    float64 [n, D], on every rank.

    Every rank calls it; each embeds the images of its share of the classes (int64 [n], rising), in evaluation
    mode, with the augmentation of evaluation. 0 for a class without a readable image.
    """
    image_n = _some_images(data.labels, classes, data.num_classes)
    groups = [image_n[first : first + _GROUP] for first in range(0, len(classes), _GROUP)]
    first, stop = split(len(groups), distributed.world_size())[distributed.rank()]
    training = backbone.training
    backbone.eval()
    try:
        read = partial(_read, data, groups)
        # With more ranks than groups, a rank without a group embeds the first, to know D.
        batches = ahead(read, first, stop, 1) if first < stop else [read(0, 1)]
        parts = [_means(backbone, data.preprocessing, *batch) for batch in batches]
    finally:
        if training:
            backbone.train()
    return distributed.gather_array(np.concatenate(parts) if first < stop else parts[0][:0])


def _some_images(labels: np.ndarray, classes: np.ndarray, num_classes: int) -> list[np.ndarray]:
    """Choose of each class at most IMAGES of its images, evenly spread: their numbers, int64."""
    wanted = np.zeros(num_classes, bool)
    wanted[classes] = True
    images = np.flatnonzero(wanted[labels])
    images = images[np.argsort(labels[images], kind="stable")]
    start, stop = (np.searchsorted(labels[images], classes, side) for side in ("left", "right"))
    return [
        images[np.linspace(low, high - 1, min(high - low, IMAGES)).astype(np.int64)]
        for low, high in zip(start.tolist(), stop.tolist())
    ]


def _read(data: Dataset, groups: list, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Read the images of the group `start` that can be decoded, [m, *shape]; the place of each one's class in
    the group, int64 [m]; how many classes it has."""
    (group,) = groups[start:stop]
    pictures, places = [], []
    for place, indices in enumerate(group):
        for index in indices.tolist():
            try:
                pictures.append(data.images(index, index + 1)[0])
            except CorruptImageError:
                continue
            places.append(place)
    expected = data.preprocessing
    shape = (len(pictures), *expected.shape)
    return np.array(pictures, expected.dtype).reshape(shape), np.array(places, np.int64), len(group)


@paddle.no_grad()
def _means(
    backbone: paddle.nn.Layer,
    preprocessing: Preprocessing,
    images: np.ndarray,
    places: np.ndarray,
    count: int,
) -> np.ndarray:
    pixels = images if len(images) else np.zeros((1, *images.shape[1:]), images.dtype)  # to know D
    emb = backbone(to_input(pixels, preprocessing)).flatten(1).numpy().astype(np.float64)
    mean = np.zeros((count, emb.shape[1]))
    np.add.at(mean, places, unit_rows(emb[: len(images)]))
    return unit_rows(mean)
