"""Build the data sets of a config: one, or several joined to train on.

    build_dataset(cfg.DataLoader, cfg.Global.seed, cfg.place)                             # to train on
    build_dataset(cfg.DataLoader, cfg.Global.seed, cfg.place, "DataLoader.Eval.dataset")  # to evaluate on

A UserError about what a key says is raised again with its place in front: file, line and key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plsc.data.config import TRAIN_SET, DataLoaderCfg, DatasetCfg
from plsc.data.dataset import Dataset
from plsc.data.joined import Joined
from plsc.errors import MissingFileError, UserError
from plsc.utils.messages import takes
from plsc.utils.registry import DATASETS
from plsc.utils.yaml_lines import KeyPath

TRAIN = ".".join(TRAIN_SET)

Place = Callable[[KeyPath], str]  # where the value at a path is written: Config.place


def keys_of_sets(loader: DataLoaderCfg) -> list[str]:
    """List the keys of the data sets, for `build_dataset`: those to train on first."""
    return [_name(path) for path in loader.sets()]


def build_dataset(loader: DataLoaderCfg, seed: int, place: Place, key: str = TRAIN) -> Any:
    """Build the data set of a key of the section DataLoader. Raises UserError.

    The one to train on joins those of a list.
    """
    sections = {_name(path): (path, section) for path, section in loader.sets().items()}
    if key != TRAIN:
        return _build_one(*sections[key], seed, place)
    trained = {name: found for name, found in sections.items() if name.startswith(TRAIN)}
    parts = {name: _build_one(path, section, seed, place) for name, (path, section) in trained.items()}
    return _join(parts, place) if len(parts) > 1 else next(iter(parts.values()))


def _name(path: KeyPath) -> str:
    return ".".join(map(str, path))


def _build_one(path: KeyPath, section: DatasetCfg, seed: int, place: Place) -> Any:
    # Sets of a list must not draw the same random numbers for their samples of the same number.
    number = path[-1] if isinstance(path[-1], int) else 0
    try:
        return section.build(seed=seed + number)
    except UserError as error:
        keyword, colon, message = str(error).partition(": ")
        if not colon or not takes(DATASETS.get(section.name), keyword):
            raise
        default = "" if keyword in section.keywords else ", which is the default; write the key to change it"
        kind = MissingFileError if isinstance(error, MissingFileError) else UserError
        keyword_path = (*path, keyword)
        raise kind(_line(place(keyword_path), _name(keyword_path), message + default)) from error


def _join(parts: dict[str, Dataset], place: Place) -> Dataset:
    """Join the sets of a list to one; `parts` has them by their keys."""
    try:
        return Joined(parts)
    except UserError as error:
        key = str(error).partition(": ")[0]
        raise UserError(_line(place((*TRAIN_SET, int(key.rpartition(".")[2]))), error)) from error


def _line(*parts: object) -> str:
    """Join place, key and message to the line of an error; a place may be empty."""
    return ": ".join(text for text in map(str, parts) if text)
