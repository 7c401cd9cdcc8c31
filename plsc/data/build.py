"""Build the data sets of a config: one, or several joined to train on.

build_dataset(cfg.DataLoader, cfg.Global.seed)                             # to train on
build_dataset(cfg.DataLoader, cfg.Global.seed, "DataLoader.Eval.dataset")  # to evaluate on
"""

from typing import Any

from plsc.data.config import TRAIN_SET, DataLoaderCfg
from plsc.data.joined import Joined
from plsc.errors import UserError
from plsc.utils.section import Plug
from plsc.utils.yaml_lines import KeyPath

TRAIN = ".".join(TRAIN_SET)


def keys_of_sets(loader: DataLoaderCfg) -> list[str]:
    """List the keys of the data sets, for `build_dataset`: those to train on first."""
    return [_name(path) for path in loader.sets()]


def build_dataset(loader: DataLoaderCfg, seed: int, key: str = TRAIN) -> Any:
    """Build the data set of a key of the section DataLoader. Raises UserError.

    The one to train on joins those of a list.
    """
    sections = {_name(path): (path, section) for path, section in loader.sets().items()}
    if key != TRAIN:
        return _build_one(*sections[key], seed)
    trained = {name: found for name, found in sections.items() if name.startswith(TRAIN)}
    parts = {name: _build_one(path, section, seed) for name, (path, section) in trained.items()}
    return Joined(parts) if len(parts) > 1 else next(iter(parts.values()))


def _name(path: KeyPath) -> str:
    return ".".join(map(str, path))


def _build_one(path: KeyPath, section: Plug, seed: int) -> Any:
    # Sets of a list must not draw the same random numbers for their samples of the same number.
    number = path[-1] if isinstance(path[-1], int) else 0
    try:
        return section.build(seed=seed + number)
    except UserError as error:
        if not error.key:
            raise
        raise type(error)(error.text, _name((*path, error.key))) from error
