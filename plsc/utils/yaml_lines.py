"""Parse YAML and keep the line of each value. Keys must be text, equal keys are errors, and values are plain.

Numbers are decimal as in YAML 1.2: `1e-4` is a number and `yes` is text. A number that begins with zeros is
text, too, because 0000045 may be a person's or a folder's name.

    >>> parse("Head: {margin: 5e-1}").value
    {'Head': {'margin': 0.5}}
"""

import re
from typing import Any, NamedTuple

import yaml

_CORE = "tag:yaml.org,2002:"
_SCALARS = {  # the first match wins: int before float
    "null": ("~|null|Null|NULL|", lambda text: None),
    "bool": ("true|True|TRUE|false|False|FALSE", lambda text: text.lower() == "true"),
    "int": (r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)", int),
    "float": (r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?", float),
    "str": (None, str),
}
# The key None means that these are tried for any first character.
_RESOLVERS = {None: [(_CORE + kind, re.compile(f"(?:{of})$")) for kind, (of, _) in _SCALARS.items() if of]}


_WORDS = {  # pattern in PyYAML's message -> our message, for the usual mistakes
    r"'\\t'": "a tab; YAML is indented with spaces",
    "mapping values are not allowed|<block end>|<document start>": (
        "a key is indented differently from the keys around it, is below a line without a colon, or is text "
        "with ': ' that needs quotes"
    ),
    "expected ',' or": "a [ or { that is not closed, or a comma that is missing in it",
    "unexpected end of stream": "a quote that is not closed",
    "cannot start any token|expected alphabetic": "a text that begins with a sign needs quotes",
}


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = _RESOLVERS


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers = _RESOLVERS
    ignore_aliases = staticmethod(lambda value: True)  # a value that occurs twice is written twice


_Dumper.add_representer(dict, lambda dumper, value: dumper.represent_mapping(_CORE + "map", value, False))

KeyPath = tuple  # keys (str) and list indices (int), such as ("LRScheduler", "milestones", 0)


class Document(NamedTuple):
    """A parsed text."""

    value: Any  # consists of dict with str keys, list, str, int, float, bool and None
    lines: dict[KeyPath, int]  # each path's line, counted from 1
    problems: list[tuple[KeyPath, int, str]]  # path, line, message


def parse(text: str) -> Document:
    """Parse one YAML document. An empty one gives None. Errors go to `problems`. Nothing is raised."""
    document = Document(None, {}, [])
    try:
        node = yaml.compose(text, Loader=_Loader)
        return document._replace(value=_construct(node, (), document) if node else None)
    except yaml.MarkedYAMLError as error:
        problem = error.problem or ""
        known = (message for pattern, message in _WORDS.items() if re.search(pattern, problem))
        message = next(known, "not valid YAML: " + ", ".join(filter(None, (error.context, problem))))
        document.problems.append(((), error.problem_mark.line + 1, message))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        document.problems.append(((), line, f"the character {chr(error.character)!r} is not YAML"))
    except RecursionError:
        document.problems.append(((), 1, "nested too deeply, or an alias (*) is within its own anchor (&)"))
    return document


def _construct(node: yaml.Node, path: KeyPath, document: Document) -> Any:
    """Return a node's plain value. Add the lines and problems at and below `path` to `document`."""

    def problem(at: yaml.Node, path: KeyPath, message: str) -> None:
        document.problems.append((path, at.start_mark.line + 1, message))

    if not isinstance(node, yaml.ScalarNode) and node.tag not in (_CORE + "map", _CORE + "seq"):
        problem(node, path, f"the tag {node.tag.replace(_CORE, '!!')} is not supported; remove it")
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            document.lines[(*path, index)] = item.start_mark.line + 1
            items.append(_construct(item, (*path, index), document))
        return items
    if isinstance(node, yaml.MappingNode):
        mapping = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if key_node.tag != _CORE + "str":
                shown = key if isinstance(key_node, yaml.ScalarNode) else "a list or mapping"
                problem(key_node, path, f"a key must be text (got {shown}); write a number in quotes")
            elif key == "<<" and not key_node.style:
                problem(key_node, (*path, key), "merging mappings is not supported; write their keys here")
            elif key in mapping:
                problem(key_node, (*path, key), f"given twice (first on line {document.lines[(*path, key)]})")
            else:
                document.lines[(*path, key)] = key_node.start_mark.line + 1
                mapping[key] = _construct(value_node, (*path, key), document)
        return mapping
    try:
        return _SCALARS[node.tag.removeprefix(_CORE)][1](node.value)
    except (KeyError, ValueError):
        tag = node.tag.replace(_CORE, "!!")
        problem(node, path, f"{node.value!r} is not of the type that its tag {tag} states")
    return None


def dump_lines(value: Any) -> str:
    """Format mappings as YAML with one key per line. A value list stays on its key's line."""
    style = {"width": float("inf"), "allow_unicode": True, "sort_keys": False}
    return yaml.dump(value, Dumper=_Dumper, default_flow_style=None, **style)
