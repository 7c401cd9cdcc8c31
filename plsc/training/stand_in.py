"""Put noise in the place of a config's images, to try a recipe without its data.

`plsc train --dry-run --stand-in` uses it:

    Entry(stand_in(load("configs/recipes/ms1mv3_r50.yaml"))).dry_run()
"""

from __future__ import annotations

from plsc.config import STAND_IN, Config
from plsc.data.config import DatasetCfg
from plsc.data.images import CHANNELS, EncodedImages, sides
from plsc.errors import MissingFileError, UserError
from plsc.utils.messages import arguments_of
from plsc.utils.registry import DATASETS
from plsc.utils.section import Section


def check_data(config: Config) -> None:
    """Check the data sets of a config for a plan; where files are absent say how it is made without them."""
    try:
        config.check_data()
    except MissingFileError as error:
        train = config.DataLoader.Train
        if train.num_classes is None or train.num_samples is None:
            raise
        raise MissingFileError(f"{error}\nto plan without these files: --stand-in, {STAND_IN}") from error


def stand_in(config: Config) -> Config:
    """Return the config with noise to train on, as many classes and samples as it states, and nothing to
    evaluate on.

    The keys of its own data sets are checked, except that their files may be absent. Raises UserError where
    the config states no num_classes or num_samples, or its images have no stated shape.
    """
    config.check_data(files=False)
    train = config.DataLoader.Train
    if len(train.sets) > 1:
        raise UserError(
            f"DataLoader.Train.dataset: --stand-in takes the place of one data set (got a list of {len(train.sets)})"
        )
    for key in ("num_classes", "num_samples"):
        if getattr(train, key) is None:
            raise UserError(f"DataLoader.Train.{key}: --stand-in makes so many; state it in the config")
    noise = {
        "name": "Synthetic",
        "num_classes": train.num_classes,
        "num_samples": train.num_samples,
        "image_shape": image_shape(train.sets[0]),
    }
    changes = {
        "DataLoader.Train.dataset": noise,
        "DataLoader.Eval.dataset": None,
        "DataLoader.Eval.more": {},
    }
    # Classes of noise have no names, by which those of another run would be found.
    for name, section in config:
        if isinstance(section, Section):
            changes.update(section.without_names(name))
    return config.edit(changes, "--stand-in")


def image_shape(section: DatasetCfg) -> tuple[int, int, int]:
    """Return [C, H, W] of the images of a data set that is not built. UserError where only its files tell."""
    cls = DATASETS.get(section.name)
    if not issubclass(cls, EncodedImages):
        formats = [name for name in DATASETS.builtin if issubclass(DATASETS.get(name), EncodedImages)]
        raise UserError(
            f"DataLoader.Train.dataset.name: --stand-in takes the place of files of images, {', '.join(formats)} (got {section.name})"
        )
    named, _ = arguments_of(cls)
    size, channels = (section.keywords.get(key, named[key].default) for key in ("size", "channels"))
    return (CHANNELS[channels], *sides(size))
