"""Parse YAML and keep the line of each value; keys are text, equal keys are errors, and values are plain.

Numbers are those of YAML 1.2, whose `1e-4` is a number and whose `yes` is text.

    >>> parse("Head: {margin: 5e-1}").value
    {'Head': {'margin': 0.5}}
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import yaml

_CORE = "tag:yaml.org,2002:"
_SCALARS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+(_[0-9]+)*|0x[0-9a-fA-F]+|0o[0-7]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}
# The key None: try these whatever the first character is. The first match wins: int before float.
_RESOLVERS = {None: [(_CORE + tag, re.compile(f"(?:{pattern})$")) for tag, pattern in _SCALARS.items()]}


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = _RESOLVERS


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers = _RESOLVERS

    def represent_text(self, text: str) -> yaml.Node:
        # Only in double quotes a line break is written as an escape, on one line.
        return self.represent_scalar(_CORE + "str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _Dumper.represent_text)


class _LinesDumper(_Dumper):
    def represent_items(self, items: list) -> yaml.Node:
        within_a_line = not any(isinstance(item, (dict, list)) for item in items)
        return self.represent_sequence(_CORE + "seq", items, flow_style=within_a_line)


_LinesDumper.add_representer(list, _LinesDumper.represent_items)


_MOST_VALUES = 100_000  # in a document; aliases (*) of aliases could make billions out of a kilobyte

KeyPath = tuple  # of keys (str) and list indices (int), e.g. ("LRScheduler", "milestones", 0)


class Problem(NamedTuple):
    path: KeyPath
    line: int  # counted from 1
    message: str


class Document(NamedTuple):
    """A parsed text: a plain `value`, the line of each path in it, and the errors as `problems`."""

    value: Any  # made of dict with str keys, list, str, int, float, bool and None
    lines: dict[KeyPath, int]
    problems: list[Problem]


def parse(text: str) -> Document:
    """Parse one YAML document (an empty one is None). Errors go to `problems`; it does not raise."""
    document = Document(None, {}, [])
    try:
        node = yaml.compose(text, Loader=_Loader)
        return document._replace(value=_construct(node, (), document) if node else None)
    except yaml.MarkedYAMLError as error:
        document.problems.append(Problem((), error.problem_mark.line + 1, _plain_words(error)))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        document.problems.append(Problem((), line, f"the character {chr(error.character)!r} is not YAML"))
    except RecursionError:
        document.problems.append(Problem((), 1, "is nested too deep, or too large by its aliases (*)"))
    return document


def _plain_words(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or ""
    if "'\\t'" in problem:
        return "a tab; YAML is indented with spaces"
    if "mapping values are not allowed" in problem or "expected <block end>" in problem:
        return (
            "a key that is indented otherwise than the keys around it, or a text with ': ' that needs quotes"
        )
    return "not valid YAML: " + ", ".join(filter(None, (error.context, problem)))


def _construct(node: yaml.Node, path: KeyPath, document: Document) -> Any:
    """Return the plain value of a node, and add the lines and problems at and below `path` to `document`."""

    def problem(at: yaml.Node, path: KeyPath, message: str) -> None:
        document.problems.append(Problem(path, at.start_mark.line + 1, message))

    if len(document.lines) > _MOST_VALUES:
        raise RecursionError
    kind = node.tag.removeprefix(_CORE)
    if isinstance(node, yaml.SequenceNode) and kind == "seq":
        items = []
        for index, item in enumerate(node.value):
            document.lines[(*path, index)] = item.start_mark.line + 1
            items.append(_construct(item, (*path, index), document))
        return items
    if isinstance(node, yaml.MappingNode) and kind == "map":
        mapping = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _CORE + "str":
                shown = key if isinstance(key_node, yaml.ScalarNode) else "a list or mapping"
                problem(key_node, path, f"a key must be text (got {shown}); write a number in quotes")
            elif key in mapping:
                problem(key_node, (*path, key), f"given twice (first on line {document.lines[(*path, key)]})")
            else:
                document.lines[(*path, key)] = key_node.start_mark.line + 1
                mapping[key] = _construct(value_node, (*path, key), document)
        return mapping
    try:
        return _scalar(kind, node.value)
    except (KeyError, TypeError, ValueError):
        text = node.value if isinstance(node, yaml.ScalarNode) else "a list or mapping"
        problem(
            node, path, f"{text!r} is not of the type that its tag {node.tag.replace(_CORE, '!!')} states"
        )
    return None


def _scalar(kind: str, text: str) -> Any:
    """Return the value of a scalar; KeyError for an unknown kind, ValueError for a text that is not of it."""
    if kind == "str":
        return text
    if not re.fullmatch(_SCALARS[kind], text):
        raise ValueError(text)
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "int":
        return int(text, {"0x": 16, "0o": 8}.get(text[:2], 10))
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


def dump(value: Any) -> str:
    """Format a value as one line of YAML, so that `parse(dump(value)).value == value`."""
    return _dump(value, _Dumper, default_flow_style=True).strip().removesuffix("\n...")


def dump_lines(value: Any) -> str:
    """Format mappings as YAML with a key a line, and lists of values within a line."""
    return _dump(value, _LinesDumper, default_flow_style=False)


def _dump(value: Any, dumper: type[yaml.SafeDumper], **style: bool) -> str:
    return yaml.dump(value, Dumper=dumper, width=float("inf"), allow_unicode=True, sort_keys=False, **style)
