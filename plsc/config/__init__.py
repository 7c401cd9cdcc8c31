"""Load a config from YAML and `-o Section.key=value`, check it, and return an immutable `Config`.

The sections define the keys and their defaults: run.py, schedule.py and optimizer.py here, and config.py in
data, backbones and heads. docs/config.md lists them. All errors are reported at once, one line each, with
file and line. Nothing here imports Paddle, so a wrong config is refused within a second, before any process
group starts.

    >>> load("configs/", ["Head.margin=0.3"]).Head.margin
    0.3
"""

import argparse
import contextlib
import copy
import itertools
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import PrivateAttr, ValidationError, field_validator

from plsc.backbones.config import ModelCfg
from plsc.config.merge import ConfigError, MergedConfig
from plsc.config.optimizer import AnyOptimizer, MomentumOptimizerCfg
from plsc.config.run import CheckpointCfg, ExportCfg, GlobalCfg, PartCfg
from plsc.config.schedule import AnySchedule, CosineCfg
from plsc.data.config import DATASETS, DataLoaderCfg
from plsc.errors import MissingFileError, SeveralErrors, UserError, escape
from plsc.heads.config import AnyHead, ArcFaceCfg
from plsc.utils.options import add_overrides
from plsc.utils.section import Section, kind_named, sections_in
from plsc.utils.yaml_lines import KeyPath, dump_lines

__all__ = ["Config", "ConfigError", "add_arguments", "load"]


class Config(Section):
    """A whole config. `load` makes it."""

    Global: GlobalCfg = GlobalCfg()
    Model: ModelCfg = ModelCfg()
    Head: AnyHead = ArcFaceCfg()
    Optimizer: AnyOptimizer = MomentumOptimizerCfg()
    LRScheduler: AnySchedule = CosineCfg()
    DataLoader: DataLoaderCfg = DataLoaderCfg()
    Checkpoint: CheckpointCfg = CheckpointCfg()
    Export: ExportCfg = ExportCfg()

    Parts: list[PartCfg] = []
    """Your own additions to a training, `["package.module:Class"]`, such as losses or numbers for the log
    (docs/extend.md)."""

    _merged: MergedConfig = PrivateAttr(default_factory=MergedConfig)

    @field_validator("Parts", mode="before")
    @classmethod
    def _named_alone(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return [{"name": part} if isinstance(part, str) else part for part in value]

    def __eq__(self, other: object) -> bool:
        """Compare the values, not their sources."""
        return isinstance(other, Config) and self.model_dump() == other.model_dump()

    @property
    def folders(self) -> list[str]:
        """Return the folders in which a run's data and modules are looked for, absolute."""
        now = [os.getcwd(), *([self._merged.folder] if self._merged.folder else [])]
        return self.Global.folders or list(dict.fromkeys(now))

    def place(self, key: str) -> str:
        """Return where "Section.key" got its value, for errors: "configs/a.yaml:12". "" means a
        default."""
        path = _path_of(key)
        source = self._merged.source(path)  # a default in a file has its section's source
        return source.place if source.level == 0 or path in self._merged.sources else ""

    @contextlib.contextmanager
    def naming_places(self) -> Iterator[None]:
        """Prefix a UserError about a key with the place where that key is written."""
        try:
            yield
        except SeveralErrors as error:
            raise SeveralErrors([self._placed(each) for each in error.errors]) from error
        except UserError as error:
            placed = self._placed(error)
            if placed is error:
                raise
            raise placed from error

    def _placed(self, error: UserError) -> UserError:
        """Return an error about a key with the place where the key is written, and any other as it is."""
        place = error.key and self.place(error.key)
        return type(error)(f"{place}: {error}") if place else error

    def plain(self) -> dict[str, Any]:
        """Return the sections as plain values."""
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        """Format the config as YAML that loads to an equal Config."""
        return dump_lines(self.plain())

    def check_ranks(self, ranks: int) -> None:
        """Raise UserError if Train.global_batch has fewer than two samples for each rank."""
        wanted = self.DataLoader.Train.global_batch
        if wanted is not None and wanted < 2 * ranks:
            raise UserError(
                f"must be at least {2 * ranks} on {ranks} ranks, since BatchNorm needs 2 samples on each "
                f"(got {wanted}); start {wanted // 2} or fewer",
                key="DataLoader.Train.global_batch",
            )

    def check_data(self, training: bool = True) -> None:
        """Check that the data sets' files exist, by each class's `check(**keywords)`.

        Args:
            training: whether to check the training set, too. An evaluation needs only its own sets.

        Raises MissingFileError or ConfigError, which begins with file, line and key.
        """
        errors = {}
        for key, section in (self.DataLoader if training else self.DataLoader.Eval).sets().items():
            try:
                section.registry.get(section.name).check(**section.model_extra)
            except UserError as error:
                path = _path_of(f"{key}.{error.key}" if error.key else key)
                errors[self._merged.line(path, error.text)] = error
        if errors:
            missing = all(isinstance(error, MissingFileError) for error in errors.values())
            raise (MissingFileError if missing else ConfigError)("\n".join(errors))


def _keys(section: type[Section], above: str = "") -> Iterator[str]:
    """Yield all dotted keys that are not sections."""
    for key, field in section.model_fields.items():
        below = sections_in(field.annotation) if key[0].isupper() else []
        for kind in below:
            yield from _keys(kind, f"{above}{key}.")
        if not below:
            yield above + key


# Keys of arcface_torch, PLSC and Hugging Face's TrainingArguments whose names do not lead to ours.
# docs/training.md has the whole table for the first two.
Section.others = {
    "FP16": "use Global.amp: float16",
    "accum_steps": "use DataLoader.Train.global_batch",
    "backbone": "use Model",
    "bf16": "use Global.amp: bfloat16",
    "checkpoint_dir": "use Global.output_dir",
    "cls_label_path": "use DataLoader.Train.dataset: {name: ImageList, list: FILE, root: FOLDER}",
    "embedding_dim": "use Model.embedding_size",
    "eval_steps": "use Global.eval_every_steps",
    "fp16": "use Global.amp: float16",
    "frequent": "use Global.log_every",
    "gradient_acc": "use DataLoader.Train.global_batch",
    "gradient_accumulation_steps": "use DataLoader.Train.global_batch",
    "image_root": "use DataLoader.Train.dataset: {name: ImageList, list: FILE, root: FOLDER}",
    "interclass_filtering_threshold": "use Head.filter_above",
    "logging_steps": "use Global.log_every",
    "lr": "use LRScheduler.learning_rate, which refers to all ranks' samples in a step",
    "lr_scheduler_type": "use LRScheduler.name",
    "m": "use Head.margin",
    "margin_list": "use Head: {name: dist_arcface, margin: b} for (1, b, 0), {name: dist_cosface, margin: c} "
    "for (1, 0, c), else {name: dist_combined, margin1: a, margin2: b, margin3: c}",
    "network": "use Model.name",
    "num_classes": "classes are counted in the data",
    "num_epoch": "use Global.epochs",
    "num_features": "use Model.embedding_size",
    "num_image": "images are counted in the data",
    "num_train_epochs": "use Global.epochs",
    "output": "use Global.output_dir",
    "per_device_eval_batch_size": "use DataLoader.Train.batch_size, which applies to evaluation, too",
    "per_device_train_batch_size": "use DataLoader.Train.batch_size",
    "print_batch_step": "use Global.log_every",
    "rec": "use DataLoader.Train.dataset: {name: RecImages, path: FOLDER}",
    "s": "use Head.scale",
    "sample_ratio": "use Head.sample_rate",
    "save_steps": "use Checkpoint.every_steps",
    "val_targets": "use DataLoader.Eval.dataset: {name: BinPairs, path: lfw.bin}",
    "verbose": "use Global.eval_every_steps",
    "warmup_epoch": "use LRScheduler.warmup_epochs",
    "warmup_ratio": "use LRScheduler.warmup_epochs: warmup_ratio times the epochs",
    "warmup_steps": "use LRScheduler.warmup_epochs: warmup_steps divided by the steps in an epoch",
}
# Values of other programs -> ours.
Section.other_values = {"sgd": "Momentum", "fp16": "float16", "bf16": "bfloat16"}
Section.elsewhere = {dotted.rpartition(".")[2]: dotted for dotted in reversed([*_keys(Config)])}


def _path_of(key: str) -> tuple[str | int, ...]:
    return tuple(int(part) if part.isdecimal() else part for part in key.split("."))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add -c, -o and --device to a command, for `load(args.config, args.override)`."""
    what = "the config: a YAML file, or a folder with a default.yaml or config.yaml"
    parser.add_argument("-c", "--config", metavar="FILE", help=what)
    add_overrides(parser, "a key for this run, such as Global.epochs=2; overrides the file")


def load(
    path: str | os.PathLike | Mapping[str, Any] | Config | None = None,
    overrides: Iterable[str] | Mapping[str, Any] = (),
) -> Config:
    """Read a config file, apply the overrides, and check the result.

    Args:
        path: a YAML file, or a folder. A folder means its default.yaml, and a run's folder its config.yaml.
            A run's config.yaml means the run in its own folder. None means the defaults. A mapping has
            "Section.key" or "Section" -> value. A Config is not modified.
        overrides: texts "Section.key=value", with the value in YAML, or a mapping. A later one wins over an
            earlier one.

    The config can name classes as package.module:Class if the module is in the file's folder or in the
    current folder. Data sets' relative paths start in the current folder, or in the file's folder if they
    do not exist there. The folders in Global.folders come first for both. In a run's config.yaml a
    user's own class may be missing: code that needs the class raises UserError.

    Raises MissingFileError if the file does not exist, and ConfigError with everything that is wrong.
    """
    merged = copy.deepcopy(path._merged) if isinstance(path, Config) else MergedConfig()
    if isinstance(path, Mapping):
        merged.put_all(path, 0, "the config's mapping")
    elif isinstance(path, (str, os.PathLike)):
        merged.read_file(os.path.expanduser(path))
    elif path is not None and not isinstance(path, Config):
        raise ConfigError(f"a config is a file, a folder, a mapping or a Config (got {escape(repr(path))})")
    level = 1 + max((source.level for source in merged.sources.values()), default=0)
    if isinstance(overrides, Mapping):
        merged.put_all(overrides, level, "overrides")
        overrides = ()
    elif not isinstance(overrides, Iterable):
        text = "overrides are a mapping, or texts 'Section.key=value'"
        raise ConfigError(f"{text} (got {escape(repr(overrides))})")
    for order, text in enumerate([overrides] if isinstance(overrides, str) else overrides):
        if not isinstance(text, str):
            raise ConfigError(f"an override must be a text 'Section.key=value' (got {escape(repr(text))})")
        merged.read_override(text, order, level)
    _expand_home(merged.tree)
    merged.refuse_other_bytes()
    recorded = _recorded_folders(merged.tree)
    beside = [merged.folder] if merged.folder else []
    _find_modules_in([*recorded, *beside, ""], merged.tree)
    _find_data_in([*recorded, "", *beside], merged.tree)
    _drop_keys_of_another_name(merged)
    try:
        context = {"of_run": merged.of_run}
        config = Config.model_validate_json(json.dumps(merged.tree), strict=True, context=context)
    except ValidationError as error:
        for mistake in error.errors():
            merged.add_error(mistake["loc"], mistake["msg"])
    if merged.problems:
        if not merged.of_run:  # a run can be used without its data
            _add_missing_files(merged)
        raise ConfigError(merged.lines())
    config._merged = merged
    return config


def _find_modules_in(folders: Iterable[str], tree: Any) -> None:
    """Append to Python's path each folder with a module that the config names as package.module:Class."""
    names = re.findall(r'"(\w+)[\w.]*:\w+"', json.dumps(tree))
    for folder, name in itertools.product(map(os.path.abspath, folders), names):
        module = os.path.join(folder, name)
        if folder not in sys.path and (os.path.isfile(f"{module}.py") or os.path.isdir(module)):
            sys.path.append(folder)


def _recorded_folders(tree: Mapping[str, Any]) -> list[str]:
    """Return Global.folders, or no folder if they are not written as they must be."""
    section = tree.get("Global")
    folders = section.get("folders") if isinstance(section, dict) else None
    return [name for name in folders if isinstance(name, str)] if isinstance(folders, list) else []


def _find_data_in(folders: Sequence[str], tree: Any) -> None:
    """Put in front of a data set's relative paths the first of the folders in which they exist."""
    loader = tree.get("DataLoader") if isinstance(tree, dict) else None
    pending = [loader]
    while pending:
        node = pending.pop()
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        paths = _keys_of_paths(node)
        for key, value in list(items):
            # A folder may be called RGB, too.
            is_path = key in paths if paths else key not in ("name", "channels")
            if isinstance(value, str) and value and is_path:
                found = (os.path.join(folder, value) for folder in folders)
                node[key] = next(filter(os.path.exists, found), value)
            pending.append(value)


def _keys_of_paths(node: Any) -> tuple[str, ...]:
    """Return the keys that a user's own data set declares as files or folders, or () if it declares none."""
    name = node.get("name") if isinstance(node, dict) else None
    with contextlib.suppress(UserError):  # the check of the whole config reports it
        return DATASETS.get(name).files if isinstance(name, str) and ":" in name else ()
    return ()


def _add_missing_files(merged: MergedConfig) -> None:
    """Add the missing files of the data sets to the mistakes of a config. Without a mistake, `check_data`
    finds them."""
    pending: list[tuple[KeyPath, Any]] = [(("DataLoader",), merged.tree.get("DataLoader"))]
    while pending:
        path, node = pending.pop()
        if isinstance(node, dict) and isinstance(node.get("name"), str) and node["name"] in DATASETS.builtin:
            try:
                DATASETS.get(node["name"]).check(**{key: node[key] for key in node if key != "name"})
            except UserError as error:
                if not error.key or isinstance(node.get(error.key), str):  # else its type is a mistake
                    merged.add_error((*path, error.key) if error.key else path, error.text)
            except (KeyError, TypeError):  # a key is absent or has another type, which is among the mistakes
                pass
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        pending += [((*path, key), value) for key, value in items]


def _expand_home(tree: Any) -> None:
    """Expand `~` in every text that begins with it."""
    for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        if isinstance(value, (dict, list)):
            _expand_home(value)
        elif isinstance(value, str):
            tree[key] = os.path.expanduser(value)


def _drop_keys_of_another_name(merged: MergedConfig) -> None:
    """Drop a file's keys that have no meaning if an override gives their section another name."""
    for key, field in Config.model_fields.items():
        kinds, written = sections_in(field.annotation), merged.tree.get(key)
        if len(kinds) > 1 and isinstance(written, dict):
            kind, name = kind_named(kinds, written.get("name")), merged.source((key, "name"))
            for other in written.keys() - kind.model_fields:
                if merged.source((key, other)).level < name.level:
                    del written[other]
                    merged.forget((key, other))
