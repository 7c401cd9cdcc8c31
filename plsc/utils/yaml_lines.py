"""Parse YAML with the line of every key, and write YAML.

PyYAML's own loader has traps for a config: `5e-4` is a string, `on` is true, `12:30:45` is the number 45045,
and of two equal keys the second silently wins. Here scalars follow YAML 1.2 (null, true/false, integers,
floats, else text), equal keys are errors that name both lines, and values are plain, whatever the tags.

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

_MOST_VALUES = 100_000  # in a document; aliases (*) of aliases could make billions out of a kilobyte
_MOST_LEVELS = 50
_MOST_DIGITS = 100
_TOO_DEEP = f"is nested more than {_MOST_LEVELS} levels deep"


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = _RESOLVERS


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers = _RESOLVERS

    def represent_text(self, text: str) -> yaml.Node:
        # Only in double quotes a line break is written as an escape, on one line.
        return self.represent_scalar(_CORE + "str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _Dumper.represent_text)


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
    except yaml.MarkedYAMLError as error:
        document.problems.append(Problem((), error.problem_mark.line + 1, _plain_words(error)))
        return document
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        document.problems.append(
            Problem((), line, f"the character {chr(error.character)!r} is not allowed in YAML")
        )
        return document
    except RecursionError:
        document.problems.append(Problem((), 1, _TOO_DEEP))
        return document
    value = _construct(node, (), document, ()) if node else None
    if len(document.lines) > _MOST_VALUES:
        message = f"has more than {_MOST_VALUES:,} values with those that its aliases (*) repeat"
        document.problems[:] = [Problem((), 1, message)]
        return document
    return document._replace(value=value)


def _plain_words(error: yaml.MarkedYAMLError) -> str:
    if "'\\t'" in (error.problem or ""):
        return "a tab; YAML is indented with spaces"
    context = error.context or ""
    if error.context_mark and error.context_mark.line != error.problem_mark.line:
        context += f" that begins on line {error.context_mark.line + 1}"
    return "not valid YAML: " + ", ".join(part for part in (context, error.problem) if part)


def _construct(node: yaml.Node, path: KeyPath, document: Document, parents: tuple[yaml.Node, ...]) -> Any:
    """Return the plain value of a node, and add the lines and problems at and below `path` to `document`."""

    def problem(at: yaml.Node, path: KeyPath, message: str) -> None:
        document.problems.append(Problem(path, at.start_mark.line + 1, message))

    if any(node is parent for parent in parents):
        problem(node, path, "contains itself through an alias (*)")
        return None
    if len(path) > _MOST_LEVELS:
        problem(node, (), _TOO_DEEP)
        return None
    if len(document.lines) > _MOST_VALUES:  # parse() reports it
        return None
    kind = node.tag.removeprefix(_CORE)
    parents = (*parents, node)
    if isinstance(node, yaml.SequenceNode) and kind == "seq":
        items = []
        for index, item in enumerate(node.value):
            document.lines[(*path, index)] = item.start_mark.line + 1
            items.append(_construct(item, (*path, index), document, parents))
        return items
    if isinstance(node, yaml.MappingNode) and kind == "map":
        mapping = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _CORE + "str":
                shown = key if isinstance(key_node, yaml.ScalarNode) else "a list or mapping"
                problem(key_node, path, f"a key must be text (got {shown})")
            elif key == "<<":
                problem(key_node, path, "merge keys (<<) are not supported, write the keys out")
            elif key in mapping:
                first = document.lines[(*path, key)]
                problem(key_node, (*path, key), f"given twice (first on line {first})")
            else:
                document.lines[(*path, key)] = key_node.start_mark.line + 1
                mapping[key] = _construct(value_node, (*path, key), document, parents)
        return mapping
    if isinstance(node, yaml.ScalarNode) and kind in (*_SCALARS, "str"):
        try:
            return _scalar(kind, node.value)
        except OverflowError:
            problem(node, path, f"an integer has at most {_MOST_DIGITS} digits")
            return None
        except ValueError:
            problem(node, path, f"{node.value!r} is not of the type that its tag !!{kind} states")
            return None
    problem(node, path, f"the tag {node.tag.replace(_CORE, '!!')} is not allowed")
    return None


def _scalar(kind: str, text: str) -> Any:
    if kind == "str":
        return text
    if not re.fullmatch(_SCALARS[kind], text):
        raise ValueError(text)
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "int":
        if len(text) > _MOST_DIGITS:  # Python refuses to read, or to write, one of thousands
            raise OverflowError(text)
        return int(text, {"0x": 16, "0o": 8}.get(text[:2], 10))
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


def dump(value: Any) -> str:
    """Format a value as one line of YAML, so that `parse(dump(value)).value == value`."""
    text = yaml.dump(
        value,
        Dumper=_Dumper,
        default_flow_style=True,
        width=float("inf"),
        allow_unicode=True,
        sort_keys=False,
    )
    return text.strip().removesuffix("\n...")
