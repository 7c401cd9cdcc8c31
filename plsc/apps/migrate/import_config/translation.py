"""Translate another program's config by a table, key by key, and write the result as YAML.

A table has a rule for each key of the other program that is known: the key here that takes the value as it
is, what becomes of it whatever its value is, or a function of all values. What has no rule has no
counterpart.

    TABLE = {
        "seed": "Global.seed",
        "dali": only(False, "data workers decode the images here"),
        "warmup_epoch": lambda theirs, key: to({"LRScheduler.warmup_epochs": max(0, theirs[key])}),
    }
"""

from __future__ import annotations

import fnmatch
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
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


class Outcome(NamedTuple):
    """What becomes of a key: "Section.key" -> value here, none where plsc does the same without; `lost`: it
    has no counterpart."""

    changes: Mapping[str, Any]
    note: str = ""
    lost: bool = False


Theirs = Mapping[
    str, Any
]  # their keys and values, with what their program takes for a key that the file leaves out
Rule = str | Outcome | Callable[[Theirs, str], Outcome]


def to(changes: Mapping[str, Any], note: str = "") -> Outcome:
    """Translate to keys here."""
    return Outcome(changes, note)


def same(note: str = "") -> Outcome:
    """Note that plsc does what the key says without one."""
    return Outcome({}, note)


def lost(why: str) -> Outcome:
    """Note that the key has no counterpart."""
    return Outcome({}, why, lost=True)


def one_of(values: Collection[Any], rule: Rule, other: Rule) -> Rule:
    """Follow a rule where the key has one of these values, else another."""
    return lambda theirs, key: _apply(rule if theirs[key] in values else other, theirs, key)


def only(value: Any, why: str) -> Rule:
    """Note that the key does nothing else than plsc at this value; at another it has no counterpart."""
    return one_of((value,), same(), lost(why))


def count(ours: str) -> Rule:
    """Translate a whole number to a key here."""
    return lambda theirs, key: to({ours: operator.index(theirs[key])})


NO_SUCH_NETWORK = "plsc has no such network: name one, or your own as package.module:Class"


def named(section: str, names: Mapping[str, Mapping[str, Any]], why: str) -> Rule:
    """Translate a name to keys of a section by a table; one that is not in it stays, for plsc to refuse, with
    a note."""

    def rule(theirs: Theirs, key: str) -> Outcome:
        name = theirs[key]
        changes = names.get(name, {"name": name})
        note = "" if name in names else why
        return to({f"{section}.{ours}": value for ours, value in changes.items()}, note)

    return rule


UNKNOWN = lost("no counterpart is known")


def when(holds: Callable[[Theirs], Any], rule: Rule, other: Rule = UNKNOWN) -> Rule:
    """Follow a rule where something holds of the file, else another."""
    return lambda theirs, key: _apply(rule if holds(theirs) else other, theirs, key)


_UNREAD = "is no plain value that is known here; nothing of the file is run"
_WRONG = (
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
)  # what a rule may raise for a value of another type


class Translation:
    """What a table makes of one file.

    Args:
        values: "key" or "Section.key" -> plain value, as in the file.
        unread: the text of what in the file is no plain value.
        defaults: what the other program takes for a key that the file leaves out.
        table: key, or pattern of keys with *, -> rule. A later rule of a key counts.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        unread: Mapping[str, str],
        defaults: Mapping[str, Any],
        table: Mapping[str, Rule],
    ):
        self.facts: list[str] = []
        self.changes: dict[str, Any] = {}
        theirs = {**defaults, **values}
        outcomes: dict[str, Outcome] = {}
        for pattern, rule in table.items():
            for key in fnmatch.filter(theirs, pattern):
                try:
                    outcome = _apply(rule, theirs, key)
                except _WRONG:
                    outcome = lost("is of no type that is known here")
                self.changes.update(outcome.changes)
                outcomes[key] = outcome
        self.rows = [_row(key, value, outcomes.get(key, UNKNOWN)) for key, value in values.items()]
        self.rows += [_row(key, text, lost(_UNREAD)) for key, text in unread.items()]


def _apply(rule: Rule, theirs: Theirs, key: str) -> Outcome:
    if isinstance(rule, str):
        return to({rule: theirs[key]})
    return rule if isinstance(rule, Outcome) else rule(theirs, key)


def _row(key: str, value: Any, outcome: Outcome) -> Row:
    here = "" if outcome.lost else ", ".join(outcome.changes) or "as here"
    return Row(key, _short(value), here, outcome.note)


def _short(value: Any) -> str:
    text = shown(dump(value))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def format_config(translation: Translation, title: str) -> str:
    """Format the translated config as YAML: first its origin, at the end what was not translated, as
    comments."""
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
