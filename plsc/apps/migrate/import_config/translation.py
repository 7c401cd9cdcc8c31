"""Collect what becomes of each key of another program's config, and write the result as YAML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from plsc.config import load
from plsc.errors import UserError, shown
from plsc.utils.messages import ConfigError
from plsc.utils.yaml_lines import dump

_LONGEST = 60  # characters of a value in a comment


class Row(NamedTuple):
    """The use of one key of the file."""

    key: str
    value: str
    to: str
    """The keys here, "as here" where plsc does the same without a key, or "" where it has no counterpart."""
    note: str


class Translation:
    """Translates the keys of one file, each once; what is left has no counterpart.

    Args:
        values: "key" or "Section.key" -> plain value, as in the file.
        defaults: what the other program takes for a key that the file leaves out.
        unread: the text of what in the file is no plain value.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        defaults: Mapping[str, Any] | None = None,
        unread: Mapping[str, str] | None = None,
    ):
        self.values = dict(values)
        self.defaults = dict(defaults or {})
        self.unread = dict(unread or {})
        self.changes: dict[str, Any] = {}
        self.facts: list[str] = []
        self._rows: dict[str, Row] = {}

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key in the file, else of the other program's defaults, else `default`."""
        return self.values.get(key, self.defaults.get(key, default))

    def to(self, key: str, changes: Mapping[str, Any], note: str = "") -> None:
        """Translate a key to "Section.key" -> value here; none where plsc does the same without."""
        self.changes.update(changes)
        self._note(key, ", ".join(changes) or "as here", note)

    def same(self, key: str, note: str = "") -> None:
        """Note that plsc does what the key says without one."""
        self._note(key, "as here", note)

    def lost(self, key: str, why: str) -> None:
        """Note that the key has no counterpart."""
        self._note(key, "", why)

    def same_if(self, key: str, value: Any, why: str, note: str = "") -> None:
        """Note that the key does nothing else than plsc at this value; at another it has no counterpart."""
        if self.get(key, value) == value:
            self.same(key, note)
        else:
            self.lost(key, why)

    def _note(self, key: str, to: str, note: str) -> None:
        if key in self.values:
            self._rows[key] = Row(key, _short(self.values[key]), to, note)

    @property
    def rows(self) -> list[Row]:
        """A row for each key of the file, in its order."""
        unknown = "no counterpart is known"
        rows = [
            self._rows.get(key, Row(key, _short(value), "", unknown)) for key, value in self.values.items()
        ]
        unread = "is no plain value that is known here; nothing of the file is run"
        return rows + [Row(key, _short(text), "", unread) for key, text in self.unread.items()]


def _short(value: Any) -> str:
    text = shown(dump(value))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def format_config(translation: Translation, title: str) -> str:
    """Format the translated config as YAML: first its origin, at the end what was not translated, as comments."""
    lines = [f"# {title}"]
    lines += [f"# {fact}" for fact in translation.facts]
    tree: dict[str, Any] = {}
    for key in sorted(translation.changes, key=_place):
        *sections, last = key.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[last] = translation.changes[key]
    lines += _lines(tree, "")
    lost = [row for row in translation.rows if not row.to]
    if lost:
        lines += ["", "# Without a counterpart here:"]
        lines += [f"#   {row.key}: {row.value}  ({row.note})" for row in lost]
    noted = [row for row in translation.rows if row.to and row.note]
    if noted:
        lines += ["", "# Not quite the same:"]
        lines += [f"#   {row.key}: {row.value}  ({row.note})" for row in noted]
    return "".join(f"{shown(line)}\n" for line in lines)


_SECTIONS = ("Global", "Model", "Head", "Optimizer", "LRScheduler", "DataLoader", "Checkpoint", "Export")


def _place(key: str) -> tuple[int, int, int]:
    """Sort by section; DataLoader.Train before Eval, a data set before the rest, a name first."""
    section, *rest = key.split(".")
    return _SECTIONS.index(section), rest[0] == "Eval", not {"name", "dataset"} & {rest[-1]}


def _lines(tree: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict) and key[0].isupper():
            yield f"{indent}{key}:"
            yield from _lines(value, f"{indent}  ")
        else:
            yield f"{indent}{key}: {dump(value)}"


def problems_of(translation: Translation) -> list[str]:
    """List what plsc refuses in the translated config, such as a network that it has not."""
    try:
        load().edit(translation.changes, "the translation")
    except ConfigError as error:
        return str(error).split("\n")
    except UserError as error:
        return [str(error)]
    return []
