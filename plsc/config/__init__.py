"""Load a config from YAML and `-o Section.key=value`, check it, and return an immutable `Config`.

The keys and their defaults are in the sections: run.py, optimizer.py, and config.py of data, backbones and
heads; tools/config_page.py writes them into docs/config.md.
All errors are reported at once, one line each with file and line. Nothing here imports Paddle: a wrong config
stops within a second, before any process group starts.

    >>> load("configs/", ["Head.margin=0.3"]).Head.margin
    0.3
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, PrivateAttr, ValidationError, field_validator
from pydantic_core import to_jsonable_python

from plsc.backbones.config import ModelCfg
from plsc.config.layers import DEFAULT, Layers, Source, config_file
from plsc.config.optimizer import OptimizerCfg
from plsc.config.run import (
    DEFAULT_EPOCHS,
    CheckpointCfg,
    ExportCfg,
    GlobalCfg,
    LRSchedulerCfg,
    PartCfg,
)
from plsc.data.config import (
    EVAL_SET,
    KEY_OF_IMAGES,
    MORE_SETS,
    TRAIN_SET,
    DataLoaderCfg,
    TrainDatasetCfg,
)
from plsc.errors import MissingFileError, UserError
from plsc.heads.config import HeadCfg, takes_options
from plsc.utils.messages import (
    ConfigError,
    ConfigProblem,
    keys_of,
    problems_of,
)
from plsc.utils.registry import DATASETS
from plsc.utils.section import NOT_TRAINING, Section
from plsc.utils.yaml_lines import KeyPath, dump

__all__ = [
    "CheckpointCfg",
    "Config",
    "ConfigError",
    "DataLoaderCfg",
    "ExportCfg",
    "GlobalCfg",
    "HeadCfg",
    "LRSchedulerCfg",
    "ModelCfg",
    "OptimizerCfg",
    "add_arguments",
    "add_overrides",
    "load",
]

# The source of Eval.dataset if it is not written and its default does not fit the training data.
_NOT_NAMED = Source(DEFAULT.level, 0, "default: nothing to evaluate on is named", "")


class Config(Section):
    """A whole config. `load` makes it; `edit` returns a changed one."""

    Global: GlobalCfg = GlobalCfg()
    Model: ModelCfg = ModelCfg()
    Head: HeadCfg = HeadCfg()
    Optimizer: OptimizerCfg = OptimizerCfg()
    LRScheduler: LRSchedulerCfg = LRSchedulerCfg()
    DataLoader: DataLoaderCfg = DataLoaderCfg()
    Checkpoint: CheckpointCfg = Field(CheckpointCfg(), json_schema_extra=NOT_TRAINING)
    Export: ExportCfg = Field(ExportCfg(), json_schema_extra=NOT_TRAINING)

    Parts: list[PartCfg] = []
    """Further features of a training: losses on pairs, `[{name: triplet, margin: 0.2}]` (docs/training.md),
    or your own, `["package.module:Class"]` (docs/extend.md)."""

    _layers: Layers = PrivateAttr(default_factory=Layers)

    @field_validator("Parts", mode="before")
    @classmethod
    def _named_alone(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return [{"name": part} if isinstance(part, str) else part for part in value]

    def __eq__(self, other: object) -> bool:
        """Compare the values, not their sources."""
        return isinstance(other, Config) and self.model_dump() == other.model_dump()

    __hash__ = None

    def applies(self, key: str) -> bool:
        return key != "Parts" or bool(getattr(self, key))

    def source(self, key: str) -> str:
        """Name the source of the value of "Section.key": "default", "file:line", "-o", or who edited it.

        Raises KeyError for a key that does not exist, or has no meaning in this config.
        """
        return self._label({".".join(map(str, path)): path for path, _ in _leaves(self)}[key])

    def place(self, path: KeyPath) -> str:
        """Return where the value at a path is written, for errors: "configs/a.yaml:12"; "" for a default."""
        return self._layers.source(path).place

    def _label(self, path: KeyPath) -> str:
        return self._layers.sources.get(path, DEFAULT).label

    def edit(self, changes: Mapping[str, Any], source: str = "edit") -> Config:
        """Return a new Config with some keys set to Python values, checked as a whole.

        Args:
            changes: "Section.key" -> value; a section as a dict replaces it.
            source: the caller, such as "set_margin", for `source` and for errors.

        Raises ConfigError as `load` does.
        """
        layers = copy.deepcopy(self._layers)
        layers.put_all(changes, max(2, layers.next_level), source)
        return _checked(layers)

    def to_yaml(self, sources: bool = False) -> str:
        """Format the config as YAML that loads to an equal Config; keys without a meaning in it are left out.

        Args:
            sources: end each line with a comment that names the source of the value.
        """
        rows: list[tuple[str, str]] = []
        above: KeyPath = ()
        for path, value in _leaves(self):
            if not sources and self._layers.sources.get(path) == _NOT_NAMED:
                continue  # a process that loads the text must warn again that nothing is evaluated
            indent = "  " * len(path[:-1])
            for depth, key in enumerate(path[:-1]):
                if path[: depth + 1] == above[: depth + 1]:
                    continue
                if isinstance(key, int):  # an item of a list begins with its first key
                    indent = "  " * depth + "- "
                    continue
                if depth == 0 and rows:
                    rows.append(("", ""))
                rows.append((f"{'  ' * depth}{key}:", ""))
            above = path[:-1]
            rows.append((f"{indent}{dump(path[-1])}: {dump(value)}", self._label(path)))
        if not sources:
            return "".join(f"{text}\n" for text, _ in rows)
        column = max(len(text) for text, _ in rows if len(text) <= 60)  # longer lines stand out on their own
        return "".join(f"{text:{column}}  # {label}\n" if label else f"{text}\n" for text, label in rows)

    @property
    def evaluation_dropped(self) -> bool:
        """Whether nothing is evaluated because the default set does not fit the training data."""
        return self._layers.sources.get(EVAL_SET) == _NOT_NAMED

    def values(self) -> dict[str, Any]:
        """Return the plain value of each "Section.key" that has a meaning in this config."""
        return {".".join(map(str, path)): value for path, value in _leaves(self)}

    def check_ranks(self, ranks: int) -> None:
        """Raise UserError if so many ranks do not make Train.global_batch, or are too many to keep it."""
        train = self.DataLoader.Train
        wanted, samples = train.global_batch, train.global_batch_on(ranks)
        if wanted is None:
            return
        places = (self.place(("DataLoader", "Train", "global_batch")), "DataLoader.Train.global_batch")
        where = ": ".join(filter(None, places))
        if samples != wanted:
            accumulate = f" x accumulate {train.accumulate}" if train.accumulate > 1 else ""
            raise UserError(
                f"{where}: must be the samples of a step, {ranks} rank{'s' * (ranks > 1)} x batch_size "
                f"{train.batch_size}{accumulate} = {samples} (got {wanted}); start {train.planned_ranks} ranks, set "
                f"keep_global_batch, change batch_size or accumulate, or give this {samples} and scale "
                f"LRScheduler.learning_rate, with SGD by {samples / wanted:.3g}"
            )
        if train.keep_global_batch and wanted < 2 * ranks:
            raise UserError(
                f"{where}: must have 2 samples for each rank, as BatchNorm needs, {2 * ranks} on {ranks} ranks "
                f"(got {wanted}); start {wanted // 2} or fewer"
            )

    def check_data(self, training: bool = True) -> None:
        """Check that the files of the data sets exist, by `check(**keywords)` of each class that defines it.

        `check` is a classmethod that raises UserError (MissingFileError for a missing file) with the text
        "keyword: what is wrong". Raises MissingFileError or ConfigError with file, line and key in front.

        Args:
            training: check the training set too; an evaluation needs only its own sets.
        """
        layers = copy.deepcopy(self._layers)
        errors = []
        for path, section in self.DataLoader.sets().items():
            if not training and path[: len(TRAIN_SET)] == TRAIN_SET:
                continue
            check = getattr(DATASETS.get(section.name), "check", None)
            try:
                if check:
                    check(**section.keywords)
            except UserError as error:
                errors.append(error)
                keyword, _, message = str(error).partition(": ")
                of_keyword = keyword in section.keywords
                problem = ConfigProblem(path, str(error))
                if of_keyword:
                    problem = ConfigProblem((*path, keyword), message)
                layers.add_error(problem)
        if errors and all(isinstance(error, MissingFileError) for error in errors):
            raise MissingFileError("\n".join(layers.lines())) from errors[0]
        if errors:
            raise ConfigError(layers.lines()) from errors[0]


class _Device(argparse.Action):
    """Takes --device as an override of Global.device."""

    def __call__(self, parser, namespace, values, option_string=None):
        namespace.override = [*namespace.override, f"Global.device={values}"]


def add_arguments(parser: argparse.ArgumentParser, device: bool = True) -> None:
    """Add -c and -o, which `load(args.config, args.override)` takes, to a command; and --device, which is
    short for an override."""
    parser.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        help="the config: a YAML file, or a folder with a default.yaml or config.yaml",
    )
    add_overrides(parser, "a key for this run, such as Global.epochs=2; wins over the file")
    if device:
        add_device(parser)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add --device, which is short for an override, to a command that has -o."""
    parser.add_argument(
        "--device", action=_Device, metavar="KIND", help="cpu, gpu, gpu:1, npu, ...: -o Global.device=KIND"
    )


def add_overrides(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add -o to a command, with its meaning as the help."""
    parser.add_argument(
        "-o",
        "--override",
        metavar="Section.key=value",
        nargs="+",
        action="extend",
        default=[],
        help=meaning,
    )


def load(
    path: str | os.PathLike | Mapping[str, Any] | Config | None = None,
    overrides: Iterable[str] | Mapping[str, Any] = (),
) -> Config:
    """Read a config file, apply the overrides, and check the result.

    Args:
        path: a YAML file; a folder means its default.yaml, or that of a run its config.yaml; None means the defaults;
            a Config stays as it is. The config.yaml of a run means the run in the folder that it lies in. A mapping has
            "Section.key" or "Section" -> value.
        overrides: "Section.key=value" each, the value in YAML; a later one wins over an earlier one. Or a mapping.

    Modules that lie beside the file, or in the current folder, can be named in it as package.module:Class.

    Raises MissingFileError when there is no such file, else ConfigError with everything that is wrong.
    """
    layers = copy.deepcopy(path._layers) if isinstance(path, Config) else Layers()
    if isinstance(path, Mapping):
        layers.put_all(path, 0, "the config's mapping")
    elif not isinstance(path, (Config, type(None))):
        layers.read_file(path)
    level = max(1, layers.next_level)
    if isinstance(overrides, Mapping):
        layers.put_all(overrides, level, "overrides")
        overrides = ()
    for order, text in enumerate([overrides] if isinstance(overrides, str) else overrides):
        layers.read_override(text, order, level)
    beside = (
        [] if isinstance(path, (Config, Mapping, type(None))) else [os.path.dirname(config_file(Path(path)))]
    )
    _find_modules_in([*beside, ""], layers.tree)
    return _checked(layers)


def _find_modules_in(folders: Iterable[str], tree: Any) -> None:
    """Append the folders to Python's path that have a module which the config names as
    package.module:Class."""
    if isinstance(tree, (dict, list)):
        for value in tree.values() if isinstance(tree, dict) else tree:
            _find_modules_in(folders, value)
    elif isinstance(tree, str) and (named := re.fullmatch(r"(\w+)[\w.]*:\w+", tree)):
        for folder in map(os.path.abspath, folders):
            module = os.path.join(folder, named[1])
            if folder not in sys.path and (os.path.isfile(f"{module}.py") or os.path.isdir(module)):
                sys.path.append(folder)


def _checked(layers: Layers) -> Config:
    layers.check_values()
    _resolve_precedence(layers, (), Config)
    _drop_options_of_another_margin(layers)
    _drop_default_evaluation(layers)
    _pair_up_training_images(layers)
    every_key = [".".join(path) for path in _keys(Config)]
    try:
        config = Config.model_validate_json(json.dumps(layers.tree), strict=True, context=every_key)
    except ValidationError as error:
        for problem in problems_of(error, Config, layers.tree, every_key):
            layers.add_error(problem)
    if layers.problems:
        raise ConfigError(layers.lines())
    config._layers = layers
    return config


def _drop_options_of_another_margin(layers: Layers) -> None:
    """Drop the options of the file if `-o` names a margin without options: they were for another margin."""
    options, name = ("Head", "options"), ("Head", "name")
    weaker = layers.sources.get(options, DEFAULT).level < layers.sources.get(name, DEFAULT).level
    if weaker and layers.get(options) and not takes_options(layers.get(name)):
        layers.drop(options)


def _drop_default_evaluation(layers: Layers) -> None:
    """Set Eval.dataset to null if it is not written and its default does not fit the training data."""
    if layers.sources.get(EVAL_SET) == _NOT_NAMED:
        layers.drop(EVAL_SET)  # the training data may have changed since
    trained = layers.get(TRAIN_SET)
    trained = [
        each.get("name")
        for each in (trained if isinstance(trained, list) else [trained])
        if isinstance(each, dict)
    ]
    default = TrainDatasetCfg.model_fields["name"].default
    others = [name for name in trained if isinstance(name, str) and name != default]
    sections = all(isinstance(layers.get(EVAL_SET[:depth]), (dict, type(None))) for depth in (1, 2))
    if others and sections and EVAL_SET not in layers.sources:
        layers.put(EVAL_SET, None, _NOT_NAMED)


# Keys that data sets to train on have in common with ImagePairs.
_PAIRED = "as DataLoader.Train.dataset"  # the source of a key that ImagePairs has from there
_OF_IMAGES = ("root", "cache", "size", "channels", "mean", "scale", "aligned", "hold_out")


def _pair_up_training_images(layers: Layers) -> None:
    """Let ImagePairs without images draw from those of the training, prepared as they are there."""
    pairs, trained = layers.get(EVAL_SET), layers.get(TRAIN_SET)
    if not isinstance(pairs, dict) or not isinstance(trained, dict):
        return
    for name in [*pairs]:  # the training data may have changed since
        if layers.source((*EVAL_SET, name)).label == _PAIRED:
            layers.drop((*EVAL_SET, name))
    key = KEY_OF_IMAGES.get(trained.get("name"))
    if pairs.get("name") != "ImagePairs" or "images" in pairs or key not in trained:
        return
    names = {"images": key, **{name: name for name in _OF_IMAGES}}
    for ours, theirs in names.items():
        if theirs in trained and ours not in pairs:
            source = layers.source((*TRAIN_SET, theirs))
            layers.put((*EVAL_SET, ours), trained[theirs], source._replace(label=_PAIRED))


def _resolve_precedence(layers: Layers, path: KeyPath, section: type[Section]) -> None:
    """Let higher layers win among keys that exclude or need each other; pydantic checks single keys."""
    if path and layers.get(path) is None:
        layers.drop(path)  # an empty section means its defaults
    for key, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            _resolve_precedence(layers, (*path, key), field.annotation)

    def source(key: str) -> Source:
        return layers.sources.get((*path, key), DEFAULT)

    for keys in section.exclusive:
        given = sorted((key for key in keys if layers.get((*path, key)) is not None), key=source)
        if len(given) < 2:
            continue
        weak, strong = given
        if source(weak).level < source(strong).level:
            layers.drop((*path, weak))
        elif layers.get((*path, weak)) and layers.get((*path, strong)):  # 0 warm-up epochs do no harm
            message = f"cannot be given together with {weak} ({source(weak).place}), keep one"
            layers.add_error(ConfigProblem((*path, strong), message))
    for key, names in section.only_with.items():
        if (
            DEFAULT.level < source(key).level < source("name").level
            and layers.get((*path, "name")) not in names
        ):
            layers.drop((*path, key))
    if section is GlobalCfg and isinstance(layers.get(path) or {}, dict):
        lengths = [layers.get((*path, key)) for key in ("epochs", "max_steps")]
        if lengths == [None, None]:
            layers.put((*path, "epochs"), DEFAULT_EPOCHS, DEFAULT)


def _keys(section: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the paths of all keys that are not sections."""
    for key, field in keys_of(section).items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _keys(field.annotation, (*path, key))
        else:
            yield (*path, key)


def _leaves(section: Section, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield path and plain value of each key that has a meaning in this config."""
    for key, value in section:
        if isinstance(value, Section):
            yield from _leaves(value, (*path, key))
        elif isinstance(value, list) and any(isinstance(item, Section) for item in value):
            for number, item in enumerate(value):
                yield from _leaves(item, (*path, key, number))
        elif value and (*path, key) == MORE_SETS:
            for title, section_of_set in value.items():
                yield from _leaves(section_of_set, (*path, key, title))
        elif section.applies(key):
            yield (*path, key), to_jsonable_python(value)
