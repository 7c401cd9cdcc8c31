"""Build the data set of a config for a test."""

from typing import Any

from plsc.config import Config
from plsc.data.build import TRAIN_SET, build_dataset


def dataset_of(cfg: Config, key: str = TRAIN_SET) -> Any:
    """Build the data set of a key."""
    with cfg.naming_places():
        return build_dataset(cfg.DataLoader, cfg.Global.seed, key)
