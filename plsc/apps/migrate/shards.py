"""Read class centres from the shard files of other programs, and check that they are complete.

    arcface_torch     checkpoint_gpu_{r}.pt: "state_dict_softmax_fc" with weight [S, D], or weight_activated where there was
                      no sampling; momentum: weight_mom, else SGD's buffer in "state_optimizer"
    Partial FC v1     rank_{r}_softmax_weight.pt and rank_{r}_softmax_weight_mom.pt: bare tensors [S, D]; also named rank:{r}_...
    PLSC 2.4          {prefix}_rank{r}.pdparams: one matrix [S, D]; momentum ("exp_avg") in {prefix}_rank{r}.pdopt
    PLSC 0.x, 2.2     dist@{name}@rank@{r:05d}.w_0 [D, S], .b_0 (bias), ..._velocity_0 (momenta), raw tensors, or pickles .pdparam
                      and .pdopt; meta.json with the numbers of ranks and classes

Sources: recognition/arcface_torch/train_v2.py and partial_fc.py of deepinsight/insightface;
plsc/nn/partialfc.py (2.4), plsc/entry.py and models/dist_algo.py (0.x), dynamic/classifiers/lsc.py
(2.2) of PaddlePaddle/PLSC. No code of the files is run.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from plsc.apps.migrate.paddle_file import load_tensor
from plsc.apps.migrate.torch_file import load_torch
from plsc.checkpoint.reshard import Head, RowArray
from plsc.errors import MissingFileError, UserError
from plsc.utils.bfloat16 import float32_of
from plsc.utils.files import read_json
from plsc.utils.safe_pickle import load_pickle
from plsc.utils.sharding import split


class Layout(NamedTuple):
    """The shard files of one program."""

    name: str
    pattern: str
    """Regular expression of a rank's main file; groups "rank" and "set": files of one set belong together."""
    load: Callable[[str], dict[str, np.ndarray | None]]
    """Main file -> "centres" [S, D], and if present "momentum" [S, D], "bias" [S], "bias_momentum" [S]."""
    split: Callable[[int, int], list[tuple[int, int]]]
    """(classes, ranks) -> the ranges of classes that the program gives its ranks."""


class Shards(NamedTuple):
    """The files of all ranks in one layout."""

    layout: Layout
    files: list[str]
    """The main files, in the order of ranks."""


def _arcface_torch(path: str) -> dict:
    saved = load_torch(path)
    head = saved.get("state_dict_softmax_fc") if isinstance(saved, dict) else None
    if not isinstance(head, dict):
        raise UserError(f"{path}: has no 'state_dict_softmax_fc', so it holds no classes")
    # Without sampling, its first version kept them in the parameter for the sampled ones.
    name = "weight" if "weight" in head else "weight_activated"
    return {
        "centres": head.get(name),
        "momentum": head.get("weight_mom", _last_momentum(saved, head.get(name))),
    }


def _last_momentum(saved: dict, centres: object) -> object:
    """Return SGD's momentum of the last parameter, the head's; None if there is none, as for AdamW."""
    optimizer = saved.get("state_optimizer")
    try:
        last = optimizer["param_groups"][-1]["params"][-1]
        momentum = optimizer["state"][last]["momentum_buffer"]
    except (KeyError, IndexError, TypeError):
        return None
    return momentum if isinstance(momentum, np.ndarray) and momentum.shape == np.shape(centres) else None


def _partial_fc(path: str) -> dict:
    momentum = path.removesuffix(".pt") + "_mom.pt"
    return {
        "centres": load_torch(path),
        "momentum": load_torch(momentum) if os.path.exists(momentum) else None,
    }


def _plsc_2_4(path: str) -> dict:
    saved = load_pickle(path)
    values = saved.values() if isinstance(saved, dict) else []
    matrices = [value for value in values if isinstance(value, np.ndarray)]
    if len(matrices) != 1:
        raise UserError(f"{path}: has {len(matrices)} tensors; the file of a rank has one, its classes")
    optimizer = path.removesuffix(".pdparams") + ".pdopt"
    momentum = None
    if os.path.exists(optimizer):
        state = load_pickle(optimizer)
        state = state.get("state") if isinstance(state, dict) else None
        momenta = [
            _tensor(entry["exp_avg"])
            for entry in (state.values() if isinstance(state, dict) else ())
            if isinstance(entry, dict) and "exp_avg" in entry
        ]
        momentum = momenta[0] if len(momenta) == 1 else None
    return {"centres": matrices[0], "momentum": momentum}


def _tensor(value: object) -> object:
    """Return the array of a pickled tensor, which Paddle may pickle as (name, array)."""
    return value[1] if isinstance(value, tuple) and len(value) == 2 else value


def _plsc_0_x(path: str) -> dict:
    """Read the centres [D, S] in `path`, and bias and momenta ("velocity") from the files beside it."""
    folder, name = os.path.split(path)
    stem = re.escape(name[: name.index(".w") + 1])
    arrays = {"centres": _transposed(_read_0_x(path))}
    for ours, theirs in (
        ("momentum", r"w(_\d+)?_velocity_\d+"),
        ("bias", r"b(_\d+)?"),
        ("bias_momentum", r"b(_\d+)?_velocity_\d+"),
    ):
        wanted = re.compile(stem + theirs + r"(\.pdparam|\.pdopt)?")
        beside = sorted(filter(wanted.fullmatch, os.listdir(folder or ".")))
        if len(beside) > 1:
            raise UserError(f"{path}: its {ours} may be any of {', '.join(beside)}; keep one of them")
        value = _read_0_x(os.path.join(folder, beside[0])) if beside else None
        arrays[ours] = _transposed(value) if ours == "momentum" else value
    return arrays


def _read_0_x(path: str) -> object:
    return _tensor(load_pickle(path)) if path.endswith((".pdparam", ".pdopt")) else load_tensor(path)


def _transposed(value: object) -> object:
    return value.T if isinstance(value, np.ndarray) else value


def _ceilings(total: int, ranks: int) -> list[tuple[int, int]]:
    """Split as PLSC 0.x: ceil(C / W) classes each, the rest on the last rank."""
    size = -(-total // ranks)
    return [(min(rank * size, total), min((rank + 1) * size, total)) for rank in range(ranks)]


LAYOUTS = (
    Layout("arcface_torch", r"(?P<set>)checkpoint_gpu_(?P<rank>\d+)\.pt", _arcface_torch, split),
    Layout("Partial FC v1", r"(?P<set>)rank[_:](?P<rank>\d+)_softmax_weight\.pt", _partial_fc, split),
    Layout("PLSC 2.4", r"(?P<set>.+)_rank(?P<rank>\d+)\.pdparams", _plsc_2_4, split),
    Layout("PLSC 0.x", r"dist@(?P<set>.+)@rank@(?P<rank>\d{5})\.w(_\d+)?(\.pdparam)?", _plsc_0_x, _ceilings),
)


def find_shards(sources: Sequence[str]) -> Shards:
    """Find the shard files in folders or among named files, in the order of ranks.

    Raises UserError if no layout has such names, for files of several layouts or runs, or a missing or
    repeated rank.
    """
    sets: dict[tuple[Layout, str], list[tuple[int, str]]] = {}
    for path in _files(sources):
        for layout in LAYOUTS:
            if match := re.fullmatch(layout.pattern, os.path.basename(path)):
                sets.setdefault((layout, match["set"]), []).append((int(match["rank"]), path))
    where = ", ".join(sources)
    if not sets:
        raise UserError(f"{where}: has no shard files of {', '.join(layout.name for layout in LAYOUTS)}")
    if len(sets) > 1:
        first = ", ".join(min(files)[1] for files in sets.values())
        raise UserError(
            f"{where}: has shards of {len(sets)} runs or programs ({first}); name the files of one"
        )
    (((layout, _), files),) = sets.items()
    files.sort()
    for rank, (number, path) in enumerate(files):
        if number < rank:
            raise UserError(
                f"{path}: rank {number} is there twice, the other is {files[rank - 1][1]}; keep one of them"
            )
        if number > rank:
            raise UserError(f"{where}: the file of rank {rank} is missing; the next that is there is {path}")
    return Shards(layout, [path for _, path in files])


def _files(sources: Sequence[str]) -> list[str]:
    files = []
    for source in sources:
        if os.path.isdir(source):
            files += [os.path.join(source, name) for name in sorted(os.listdir(source))]
        elif not os.path.exists(source):
            raise MissingFileError(f"{source}: there is no such file or folder")
        elif not any(re.fullmatch(layout.pattern, os.path.basename(source)) for layout in LAYOUTS):
            raise UserError(f"{source}: is not named as a rank's main file of any layout; give the folder")
        else:
            files.append(source)
    return files


class Gathered:
    """The rows of all ranks as one head; only one rank's file is in memory at a time.

    Attributes:
        ranges: the classes [start, stop) of each rank.
        head: float32 arrays.

    Raises UserError for files that are damaged, hold something else, or do not fit together.
    """

    def __init__(self, shards: Shards, num_classes: int | None = None):
        self.shards = shards
        self._loaded = (-1, {})  # rank, its arrays
        shapes = [
            {name: array.shape for name, array in self._load(rank).items()}
            for rank in range(len(shards.files))
        ]
        for path, shape in zip(shards.files, shapes):
            if shape.keys() != shapes[0].keys():
                raise UserError(
                    f"{path}: holds {_listed(shape)}, {shards.files[0]} holds {_listed(shapes[0])}"
                )
            if shape["centres"][1] != (size := shapes[0]["centres"][1]):
                raise UserError(
                    f"{path}: has centres of {shape['centres'][1]} numbers, {shards.files[0]} of {size}"
                )
        sizes = [shape["centres"][0] for shape in shapes]
        edges = np.cumsum([0, *sizes]).tolist()
        self.ranges = list(itertools.pairwise(edges))
        self._check_sizes(sizes, edges[-1], num_classes)
        self.head = Head(
            {name: RowArray(np.dtype(np.float32), shape) for name, shape in shapes[0].items()}, self._read
        )

    def _check_sizes(self, sizes: list[int], total: int, num_classes: int | None) -> None:
        """Check that the number of classes of each rank is the one that the program gives it."""
        files, layout = self.shards.files, self.shards.layout
        meta = Path(files[0]).with_name("meta.json")
        if layout.load is _plsc_0_x and meta.is_file():
            known = read_json(meta)
            known = known if isinstance(known, dict) else {}
            if (ranks := known.get("pretrain_nranks", len(files))) != len(files):
                raise UserError(f"{meta}: says {ranks} ranks, there are files of {len(files)}")
            num_classes = known.get("num_classes", num_classes) if num_classes is None else num_classes
        if num_classes not in (None, total):
            raise UserError(
                f"{files[0]}: the {len(files)} ranks have {total} classes together, not {num_classes}"
            )
        for path, size, (start, stop) in zip(files, sizes, layout.split(total, len(files))):
            if size != stop - start:
                raise UserError(
                    f"{path}: has {size} classes; of {total} on {len(files)} ranks {layout.name} gives it {stop - start}: "
                    "a rank's file is missing or of another run"
                )

    def _load(self, rank: int) -> dict[str, np.ndarray]:
        """Load and check the arrays of a rank."""
        if self._loaded[0] != rank:
            path = self.shards.files[rank]
            self._loaded = (-1, {})  # frees the arrays of the rank before
            arrays = {
                name: value for name, value in self.shards.layout.load(path).items() if value is not None
            }
            for name, ndim in (("centres", 2), ("momentum", 2), ("bias", 1), ("bias_momentum", 1)):
                _check_array(path, name, arrays.get(name), ndim, arrays.get("centres"))
            self._loaded = (rank, arrays)
        return self._loaded[1]

    def _read(self, name: str, start: int, stop: int) -> np.ndarray:
        rank = next(rank for rank, (first, end) in enumerate(self.ranges) if first <= start < end)
        first, end = self.ranges[rank]
        assert stop <= end, "head files have the ranks' ranges, so no block is of two"
        return np.ascontiguousarray(
            float32_of(self._load(rank)[name][start - first : stop - first]), np.float32
        )


def _check_array(path: str, name: str, value: object, ndim: int, centres: object) -> None:
    if value is None and name != "centres":
        return
    if (
        not isinstance(value, np.ndarray)
        or value.ndim != ndim
        or value.dtype.str[1:] not in ("f4", "f2", "u2")
    ):
        kind = f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
        raise UserError(f"{path}: {name}: must be {ndim} axes of float32, float16 or bfloat16 (got {kind})")
    if value.shape != centres.shape[:ndim]:
        raise UserError(f"{path}: {name} is {list(value.shape)}, its centres are {list(centres.shape)}")


def _listed(names: Mapping) -> str:
    return " and ".join(sorted(names))
