"""Merge a config's values from the file and each `-o`. A later value wins.

`MergedConfig` holds the plain values as one tree, and each path's source, so that an error can
name file and line. It does not depend on the sections. plsc.config checks the tree.
"""

import difflib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from plsc.errors import UserError, escape, reading
from plsc.utils.files import read_regular
from plsc.utils.section import formatted
from plsc.utils.yaml_lines import KeyPath, parse

CONFIG = "config.yaml"  # the resolved config that a run, or plsc import, writes beside its checkpoints


class ConfigError(UserError):
    """Reports everything that is wrong with a config, one line for each error."""


class Source(NamedTuple):
    """A value's source. Sources sort from weak to strong, and by line within a file."""

    level: int  # 0 for the file, 1 and more for each load's overrides
    order: int  # line in the file, or position among the overrides
    place: str  # "configs/a.yaml:12", "-o Head.margin=x"


DEFAULT = Source(-1, 0, "")


class MergedConfig:
    """The tree of values, `sources` (path -> Source), and `problems` (error lines with their Source)."""

    def __init__(self) -> None:
        self.folder: str | None = None  # the file's, absolute
        self.of_run = False  # whether the file is a run's config.yaml
        self.tree: dict[str, Any] = {}
        self.sources: dict[KeyPath, Source] = {}
        self.problems: list[tuple[Source, str]] = []

    def read_file(self, path: str | os.PathLike) -> None:
        """Read a YAML file, or a folder's. A run is in the folder of its config.yaml. Raises
        MissingFileError."""
        asked, path = Path(path), config_file(Path(path))
        if path.suffix == ".py" and path.is_file():
            raise UserError(
                f"{escape(path)}: is Python, and a config is YAML; docs/training.md has the key for each "
                "setting of arcface_torch, and configs/recipes/ has whole configs"
            )
        if not path.is_file():
            _refuse_checkpoint(asked)
        stems = {file.stem: str(file) for file in path.parent.glob("*.y*ml")}
        near = [stems[stem] for stem in difflib.get_close_matches(path.stem, stems, n=1)]
        if Path(f"{asked}.yaml").is_file():  # a folder of pictures, beside the config that `plsc init` wrote
            near = [f"{asked}.yaml"]
        hint = f", did you mean '{near[0]}'?" if near else ""
        if asked.is_dir() and not near:
            hint = f", and {escape(asked)} is not a run's folder, since it has no {CONFIG}"
        with reading(path, missing=f"no such config file{hint}"):
            document = parse(read_regular(path).decode("utf-8-sig"))
        for at, line, message in document.problems:
            self.add_error(at, message, Source(0, line, f"{path}:{line}"))
        if isinstance(document.value, dict):
            self.tree = document.value
            self.sources = {at: Source(0, line, f"{path}:{line}") for at, line in document.lines.items()}
        elif document.value is not None:
            message = f"a config must be a mapping of sections (got {formatted(document.value)})"
            self.add_error((), message, Source(0, 1, f"{path}:1"))
        self.folder = os.path.abspath(path.parent)
        key = _key_of_run(path.parent) if path.name == CONFIG else None
        self.of_run = key is not None
        if key and isinstance(self.tree.get("Global"), (dict, type(None))):
            self.put(("Global", key), str(path.parent), Source(0, 0, f"where {path} is"))

    def read_override(self, text: str, order: int, level: int = 1) -> None:
        """Apply `Section.key=value`. The value is YAML, and may contain '='."""
        source = Source(level, order, f"-o {text}")
        key, equals, value = text.partition("=")
        path = tuple(part.strip() for part in key.split("."))
        document = parse(value)
        if not equals or not all(path):
            wrong = "the key is empty" if equals else "it has no '='"
            self.add_error((), f"an override must be Section.key=value ({wrong})", source)
        for at, _, message in document.problems:
            self.add_error((*path, *at), message, source)
        if equals and all(path) and not document.problems:
            self.put(path, document.value, source)

    def put_all(self, changes: Mapping[str, Any], level: int, place: str) -> None:
        """Set Python values by their keys: "Section.key", or "Section" with a mapping.

        Tuples and arrays become lists, paths become text, and NumPy scalars become numbers.
        """
        for order, (key, value) in enumerate(changes.items()):
            source = Source(level, order, place)
            try:
                plain = lambda x: x.tolist() if hasattr(x, "tolist") else os.fspath(x)
                text = json.dumps(value, default=plain)
            except (TypeError, ValueError) as error:
                remedy = 'give a class by its name, {"name": "module:Class", ...} (docs/extend.md)'
                self.add_error((str(key),), f"is no value of a config: {error}; {remedy}", source)
                continue
            self.put(tuple(str(key).split(".")), json.loads(text), source)

    def put(self, path: KeyPath, value: Any, source: Source) -> None:
        """Replace the present value by a plain value or a whole mapping."""
        node = self.tree
        for depth, key in enumerate(path[:-1], 1):
            if isinstance(node.get(key), list):
                self.add_error(path[:depth], "is a list: replace the whole list", source)
                return
            if not isinstance(node.get(key), dict):
                self.forget(path[:depth])
                node[key] = {}
                self.sources[path[:depth]] = source
            node = node[key]
        self.forget(path)
        node[path[-1]] = value
        for below in _paths(value):
            self.sources[(*path, *below)] = source

    def forget(self, path: KeyPath) -> None:
        """Remove the sources for a path and everything below it."""
        self.sources = {p: source for p, source in self.sources.items() if p[: len(path)] != path}

    def refuse_other_bytes(self) -> None:
        """Raise ConfigError if a text or a key is not UTF-8, since YAML and JSON cannot contain it."""
        for path, text in _texts(self.tree):
            try:
                text.encode()
            except UnicodeEncodeError:
                self.add_error(path, f"is not UTF-8 (got '{escape(text)}'); rename the file or folder")
                raise ConfigError(self.lines()) from None

    def source(self, path: KeyPath) -> Source:
        """Return a path's source, or that of the nearest path above it that has one."""
        above = (path[:length] for length in range(len(path), 0, -1))
        return next((self.sources[p] for p in above if p in self.sources), DEFAULT)

    def add_error(self, path: KeyPath, message: str, source: Source | None = None) -> None:
        """Add an error about a path. Its place is the path's source, unless another one is given."""
        source = source or self.source(path)
        self.problems.append((source, self.line(path, message, source)))

    def line(self, path: KeyPath, message: str, source: Source | None = None) -> str:
        """Return an error as one line: place, key and message."""
        place = (source or self.source(path)).place
        text = ": ".join(filter(None, (place, ".".join(map(str, path)), message)))
        return " ".join(text.splitlines())

    def lines(self) -> str:
        """Return the error lines: the file's in its order, and then the overrides'."""
        return "\n".join(line for _, line in sorted(self.problems, key=lambda problem: problem[0]))


def config_file(path: Path) -> Path:
    """Return the config file that a path means: for a folder its default.yaml, or a run's config.yaml."""
    if not path.is_dir():
        return path
    default = path / "default.yaml"
    return default if default.exists() or not (path / CONFIG).exists() else path / CONFIG


def _refuse_checkpoint(path: Path) -> None:
    """Raise UserError if a path is a checkpoint's folder, or the folder with a run's checkpoints."""
    if path.is_dir() and path.name == "checkpoints":
        raise UserError(f"{escape(path)}: contains checkpoints; name the run's folder, {escape(path.parent)}")
    if path.is_dir() and path.parent.name == "checkpoints":
        run, here = escape(path.parent.parent), escape(path)
        raise UserError(
            f"{here}: is a checkpoint; name the run's folder, and the checkpoint by its key: -c {run} "
            f'-o Global.checkpoint={here}, in Python Entry("{run}", {{"Global.checkpoint": "{here}"}})'
        )


def _key_of_run(folder: Path) -> str | None:
    """Return the key in Global that a folder sets: output_dir for a run, checkpoint for imported weights, and
    None for another folder."""
    if (folder / "manifest.json").is_file():
        return "checkpoint"
    is_run = (folder / "metrics.jsonl").is_file() or any(folder.glob("checkpoints/step-*"))
    return "output_dir" if is_run else None


def _paths(value: Any) -> Iterator[KeyPath]:
    yield ()
    if isinstance(value, (dict, list)):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            for below in _paths(child):
                yield (key, *below)


def _texts(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Yield each key and each text in a value, with its path."""
    if isinstance(value, str):
        yield path, value
    if isinstance(value, (dict, list)):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield path, str(key)
            yield from _texts(child, (*path, key))
