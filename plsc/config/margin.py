"""Check the margin that a config names, and its constants, by the margin's class.

`Head.margin` and `Head.options` are the keyword arguments of the class: its annotations are the types that a
config may give. A built-in class is imported, and Paddle with it, only when there are options to check; a
user's own class always.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from plsc.config.layers import DEFAULT, Layers
from plsc.config.schema import HeadCfg, Section, head_names, is_import_path, is_softmax, kind_of_head
from plsc.errors import UserError
from plsc.utils.messages import ConfigProblem, arguments_of, check_keywords, shown, takes
from plsc.utils.registry import MARGINS

_HEAD = ("Head",)


class _Arguments(Section):
    """A section without fields of its own: a mapping of keyword arguments."""

    supplied: ClassVar[dict[str, str]] = {}


def check_margin(layers: Layers, every_key: list[str]) -> dict[str, Any]:
    """Check Head.margin, Head.options and Head.filter_above of a config by the class that Head.name names.

    Returns the options as the class annotates them. Errors are added to `layers`.
    """
    head = layers.get(_HEAD) or {}
    if not isinstance(head, dict):
        return {}  # pydantic reports this, and the two below
    name = head.get("name", HeadCfg.model_fields["name"].default)
    if not isinstance(name, str) or not isinstance(head.get("options") or {}, dict) or is_softmax(name):
        return {}
    kind = kind_of_head(name)
    if name not in head_names() and not is_import_path(name):
        return {}
    if kind in MARGINS.builtin and not head.get("options"):
        return {}
    try:
        cls = MARGINS.get(kind)
    except UserError as error:
        sharded = is_import_path(name) and name.startswith("dist_")
        hint = "; a class by its import path is sharded without 'dist_'" if sharded else ""
        layers.add_error(ConfigProblem((*_HEAD, "name"), f"{error}{hint}"))
        return {}
    _drop_options_of_another(layers, cls)
    given = dict(layers.get((*_HEAD, "options")) or {})
    problems = list(_combinations(cls, kind, head, given))
    values: dict[str, Any] = {}
    if not problems:
        if head.get("margin") is not None:
            given["margin"] = head["margin"]
        values, problems = check_keywords(_Arguments, cls, given, every_key)
    for problem in problems:
        of_options = problem.path and problem.path[0] not in ("margin", "options", "filter_above")
        above = (*_HEAD, "options") if of_options else _HEAD
        layers.add_error(ConfigProblem((*above, *problem.path), problem.message))
    values.pop("margin", None)
    return values


def _drop_options_of_another(layers: Layers, cls: type) -> None:
    """Drop the options of the file if `-o` names a margin without options: they were for another margin."""
    options = layers.sources.get((*_HEAD, "options"), DEFAULT)
    name = layers.sources.get((*_HEAD, "name"), DEFAULT)
    if DEFAULT.level < options.level < name.level and not _options_of(cls):
        layers.drop((*_HEAD, "options"))


def _options_of(cls: type) -> list[str]:
    """List the keyword arguments of a margin's class without `margin`; "..." stands for `**options`."""
    named, takes_any = arguments_of(cls)
    return [name for name in named if name != "margin"] + ["..."] * takes_any


def _combinations(
    cls: type, kind: str, head: dict[str, Any], options: dict[str, Any]
) -> Iterator[ConfigProblem]:
    """Yield a problem for each key that is valid alone but has no meaning with the others."""
    if head.get("margin") is not None and not takes(cls, "margin"):
        rule = f"has no meaning with {kind}, whose class takes no 'margin'"
        yield ConfigProblem(("margin",), f"{rule} (got {shown(head['margin'])})")
    if "margin" in options:
        yield ConfigProblem(
            ("options",), f"'margin' is a key of its own: set Head.margin (got {shown(options)})"
        )
    elif options and not _options_of(cls):
        yield ConfigProblem(
            ("options",), f"has no meaning with {kind}, which has none (got {shown(options)})"
        )
    if head.get("filter_above") is not None and cls.has_others and kind not in MARGINS.builtin:
        rule = f"has no meaning with {kind}, which changes the other classes' logits itself"
        yield ConfigProblem(("filter_above",), f"{rule} (got {shown(head['filter_above'])})")
