"""Build a config's data sets and the training set's loader.

Several training sets are joined into one. Try it:

build_dataset(cfg.DataLoader, cfg.Global.seed)                             # to train on
build_dataset(cfg.DataLoader, cfg.Global.seed, "DataLoader.Eval.dataset")  # to evaluate on
build_loader(cfg.DataLoader, dataset, cfg.Global.seed, rank=0, ranks=1)    # of its batches
"""

from typing import Any

from plsc.data.config import TRAIN_SET, DataLoaderCfg, TrainCfg
from plsc.data.dataset import Dataset, check_labels, checked_identities
from plsc.data.joined import Joined
from plsc.data.loader import Loader
from plsc.errors import Mistakes, UserError
from plsc.utils.registry import is_import_path


def build_loader(section: DataLoaderCfg, dataset: Dataset, seed: int, rank: int, ranks: int) -> Loader:
    """Build one rank's loader.

    Args:
        section: the config's section DataLoader.
        dataset: the training set.
        seed: the run's seed.
        rank: this rank, from 0.
        ranks: world size.

    Raises UserError with all mistakes: fewer than two classes, or a batch or a world size that does not fit
    the sample count.
    """
    train = section.Train
    global_batch = train.global_batch_on(ranks)
    mistakes = Mistakes()
    with mistakes.collected():
        if dataset.num_classes < 2:
            raise UserError("has 1 class, training needs at least 2", key=TRAIN_SET)
    with mistakes.collected():
        _check_step(train, len(dataset), ranks)
    with mistakes.collected():
        for key, size in (("batch_size", train.batch_size), ("global_batch", global_batch)):
            if train.per_class and size % train.per_class:
                raise UserError(
                    f"{train.per_class} images of each class do not divide {key} ({size}); change one of "
                    "them",
                    key="DataLoader.Train.per_class",
                )
    mistakes.raise_all()
    return Loader(
        dataset,
        global_batch,
        rank,
        ranks,
        seed,
        train.num_workers,
        micro_batches=-(-global_batch // train.batch_size),
        per_class=train.per_class,
    )


def _check_step(train: TrainCfg, samples: int, ranks: int) -> None:
    """Raise UserError if a step takes more than the samples of an epoch."""
    global_batch = train.global_batch_on(ranks)
    if global_batch > samples:
        key = "global_batch" if train.global_batch else "batch_size"
        each = "" if train.global_batch or ranks == 1 else f"{train.batch_size:,} x {ranks} ranks: "
        raise UserError(
            f"{each}{global_batch:,} samples per step are more than the {samples:,} per epoch; lower it",
            key=f"DataLoader.Train.{key}",
        )


def build_dataset(loader: DataLoaderCfg, seed: int, key: str = TRAIN_SET) -> Any:
    """Build the data set for a key in the section DataLoader. A list of training sets is joined into one set.

    Args:
        loader: the config's section DataLoader.
        seed: the run's seed.
        key: the data set's key in the config.

    Raises UserError, for a list with every set's mistakes.
    """
    parts, mistakes = {}, Mistakes()
    for name, section in loader.sets().items():
        if name != key and not (key == TRAIN_SET and name.startswith(key)):
            continue
        # Samples with the same number in two sets of a list must not draw the same random numbers. The key
        # `seed` of a set replaces this one.
        number = name.removeprefix(f"{TRAIN_SET}.")
        with mistakes.collected():
            try:
                parts[name] = section.build(seed=seed + (int(number) if number.isdecimal() else 0))
            except UserError as error:
                if error.key:
                    raise type(error)(error.text, f"{name}.{error.key}") from error
                if is_import_path(section.name):
                    raise type(error)(error.text, name) from error
                raise
            if is_import_path(section.name) and getattr(parts[name], "identities", None) is not None:
                parts[name].identities = checked_identities(parts[name])
    mistakes.raise_all()
    dataset = Joined(parts) if len(parts) > 1 else next(iter(parts.values()))
    if key == TRAIN_SET:
        try:
            check_labels(dataset)
        except UserError as error:
            raise UserError(error, key=key) from error
    return dataset
