"""Turn pydantic's errors into sentences for the author of a config.

"Input should be a valid integer, unable to parse string as an integer" becomes "must be an integer >= 1 (got
'ten')". The rule is read from the field itself, so errors and the type column of docs/config.md use the same
words. This module handles fields and signatures; plsc.config adds files and lines.
"""

from __future__ import annotations

import collections.abc
import difflib
import inspect
import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from plsc.errors import UserError
from plsc.utils.registry import did_you_mean
from plsc.utils.yaml_lines import KeyPath, dump, parse

_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "text", dict: "a mapping of keys"}
_LISTS = (list, tuple, set, collections.abc.Sequence, collections.abc.Iterable)
_UNIONS = (typing.Union, types.UnionType)

UNION_TAGS = ("(mapping)", "(list)")
"""Tags that a section gives to the alternatives of a union; pydantic adds them to the place of an error."""

KINDS: dict[str, tuple[type[BaseModel], tuple[type[BaseModel], ...]]] = {}
"""The sections of which one is chosen by a name (`plsc.utils.section.one_of`): the tag that pydantic adds to
the
place of an error -> the section, and all to choose from."""


class ConfigError(UserError):
    """Everything that is wrong with a config, one line each in `errors`; `str()` joins them."""

    def __init__(self, errors: Iterable[str]):
        self.errors = [" ".join(error.splitlines()) for error in errors]
        super().__init__("\n".join(self.errors))


class ConfigProblem(NamedTuple):
    """An error in a config: the path of the key, and the message without place and key."""

    path: KeyPath
    message: str


class Problems(ValueError):
    """What is wrong with a section, found while pydantic validates it; paths begin below the section."""

    def __init__(self, problems: Iterable[ConfigProblem]):
        self.problems = list(problems)
        super().__init__("; ".join(problem.message for problem in self.problems))


def describe(annotation: Any, limits: Iterable[Any] = ()) -> str | None:
    """Describe the rule of a field, to follow "must be": "a number in (0, 1]". None for other types."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    kind = origin or annotation
    if kind is typing.Annotated:
        inner = [limit for extra in args[1:] for limit in getattr(extra, "metadata", [extra])]
        return describe(args[0], [*limits, *inner])
    if kind in _UNIONS:
        words = ["null" if arg is type(None) else describe(arg, limits) for arg in args]
        return None if None in words else " or ".join(dict.fromkeys(words))
    if kind is typing.Literal:
        return ("one of " if len(args) > 1 else "") + ", ".join(map(str, args))
    if kind in _LISTS:
        if kind is tuple and ... not in args:
            return f"a list of {len(args)} values" if args else "a list"
        each = describe(args[0]) if args else None
        return "a list" + _bounds(limits) + (f", each {each}" if each else "")
    if sections_in(kind):
        return _WORDS[dict]
    return _WORDS[kind] + _bounds(limits) if kind in _WORDS else None


def _bounds(limits: Iterable[Any]) -> str:
    names = ("gt", "ge", "lt", "le", "min_length")
    bounds = {name: getattr(limit, name) for limit in limits for name in names if hasattr(limit, name)}
    low = bounds.keys() & {"gt", "ge"}
    high = bounds.keys() & {"lt", "le"}
    if low and high:
        opening, closing = "(" if "gt" in low else "[", ")" if "lt" in high else "]"
        return f" in {opening}{bounds[low.pop()]}, {bounds[high.pop()]}{closing}"
    signs = {"gt": "> {}", "ge": ">= {}", "lt": "< {}", "le": "<= {}", "min_length": "(not empty)"}
    return "".join(f" {signs[name].format(bound)}" for name, bound in bounds.items())


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """List the sections that a field may hold, also those of a union or of the items of a list."""
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [section for argument in typing.get_args(annotation) for section in sections_in(argument)]


def first_problem(error: ValidationError) -> tuple[str, str]:
    """Return the dotted key and the message, pydantic's own, of the first error."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return ".".join(map(str, first["loc"])), first["msg"]


def problems_of(
    error: ValidationError, model: type[BaseModel], data: Any, everywhere: Iterable[str] = ()
) -> Iterator[ConfigProblem]:
    """Yield what pydantic has found wrong in validating `data` with `model`; everywhere: see `_unknown`."""
    for detail in error.errors():
        problem = _explain(detail, model, data, everywhere)
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, Problems):
            yield from (ConfigProblem((*problem.path, *path), text) for path, text in cause.problems)
        else:
            yield problem


def _explain(
    error: Mapping[str, Any], model: type[BaseModel], data: Any, everywhere: Iterable[str]
) -> ConfigProblem:
    """Turn one of `ValidationError.errors()` into plain English."""
    path, value, above = (), data, {}
    annotation, limits, section, family = model, (), model, ()
    owner = model  # of the last key
    for part in error["loc"]:
        in_mapping = isinstance(value, dict) and part in value
        in_list = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if not in_mapping and not in_list:  # pydantic's name of one of the alternatives of a union
            section, family = KINDS.get(part, (section, family))
            continue
        path, value, above, owner = (*path, part), value[part], value, section
        field = _fields(section).get(part)
        annotation, limits = (field.annotation, field.metadata) if field else (_item(annotation), ())
        section = next(iter(sections_in(annotation)), section)
    kind, got = error["type"], f"(got {shown(value)})"
    if kind == "extra_forbidden":
        others = _names_with(path[-1], owner)
        name = above.get("name", _fields(owner)["name"].default) if others else ""
        text = f"has no meaning with {name}, only with {', '.join(others)} {got}"
        return ConfigProblem(path, text if others else _unknown(path[-1], _fields(owner), everywhere))
    if kind == "missing" and isinstance(value, dict):
        return ConfigProblem((*path, error["loc"][-1]), "is required")
    if kind == "value_error":
        return ConfigProblem(path, f"{error['ctx']['error']} {got}")
    rule = describe(annotation, limits)
    choices = typing.get_args(annotation) if kind == "literal_error" else ()
    if family and path[-1:] == ("name",):
        choices = [name for kind in family for name in names_of(kind)]
        own = "" if all(map(names_of, family)) else ", or your own as package.module:Class"
        rule = f"one of {', '.join(choices)}{own}"
    message = f"must be {rule}" if rule else error["msg"].replace("Input should be", "must be")
    hint = (
        did_you_mean(value, map(str, choices))
        or _in_section(value, annotation)
        or _unquoted(value, annotation)
    )
    return ConfigProblem(path, f"{message} {got}{hint}")


def _fields(section: type[BaseModel]) -> dict[str, Any]:
    """Return key -> FieldInfo of a section."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def _in_section(value: Any, annotation: Any) -> str:
    """Suggest the section whose key takes a word that stands in the section's place; "" if none does."""
    fields = [item for section in sections_in(annotation) for item in _fields(section).items()]
    found = (
        key for key, field in fields if isinstance(value, str) and value in typing.get_args(field.annotation)
    )
    return "".join(f"; write {{{key}: {value}}}" for key in [*found][:1])


def _unquoted(value: Any, annotation: Any) -> str:
    """Say that a number or boolean that would be taken is in quotes; "" if it is none."""
    found = type(parse(value).value) if isinstance(value, str) else None
    kinds = (annotation, *typing.get_args(annotation))
    return "; write it without quotes" if found in kinds or (found is int and float in kinds) else ""


def _item(annotation: Any) -> Any:
    """Return the annotation of the items of a list or mapping; Any if it is unknown."""
    for kind in (annotation, *typing.get_args(annotation)):
        kind = typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind
        items = [argument for argument in typing.get_args(kind) if argument is not ...]
        if typing.get_origin(kind) is dict or (typing.get_origin(kind) in _LISTS and len(items) == 1):
            return items[-1]
    return Any


# Name of a key in InsightFace and other programs -> its name here.
_ELSEWHERE = {
    "m": "margin",
    "s": "scale",
    "lr": "learning_rate",
    "wd": "weight_decay",
    "num_epoch": "epochs",
    "num_epochs": "epochs",
    "fp16": "amp",
}


def names_of(section: type[BaseModel]) -> tuple[str, ...]:
    """Return the names that choose a section; none of one for a class of one's own."""
    return typing.get_args(section.model_fields["name"].annotation)


def _names_with(key: str, section: type[BaseModel]) -> list[str]:
    """List the names, in the place of that of `section`, with which a key has a meaning."""
    _, family = KINDS.get(section.__name__, (None, ()))
    return [name for kind in family if key in kind.model_fields for name in names_of(kind)]


def _unknown(key: str, known: Iterable[str], everywhere: Iterable[str]) -> str:
    """Say that a section has no such key. everywhere: dotted keys of the whole config, also to be meant."""
    key = _ELSEWHERE.get(key.lower(), key)
    noun = "section" if all(name[0].isupper() for name in known) else "key"  # sections are capitalised
    elsewhere = {dotted.rpartition(".")[2].lower(): dotted for dotted in reversed([*everywhere])}
    near = difflib.get_close_matches(key.lower(), elsewhere, n=1, cutoff=0.8)
    hint = did_you_mean(key, known) or (f", did you mean '{elsewhere[near[0]]}'?" if near else "")
    return f"unknown {noun}{hint or ' (one of ' + ', '.join(known) + ')'}"


def shown(value: Any) -> str:
    """Format a value for an error: YAML's null and true, quoted text, at most 60 characters."""
    text = repr(value) if isinstance(value, str) else dump(value)
    return text if len(text) <= 60 else text[:57] + "..."


def check_keywords(
    section: type[BaseModel], cls: type, given: Mapping[str, Any], everywhere: Iterable[str]
) -> tuple[dict[str, Any], list[ConfigProblem]]:
    """Check the keyword arguments in a section by the signature of their class.

    Args:
        section: its own fields may stand beside the keyword arguments; they are not checked here.
            `section.supplied` maps arguments that plsc passes to the keys that they come from: a user must
            not
            write them as keyword arguments, and the class must take those that are fields of the section.
        cls: the class. A parameter whose annotation is missing or cannot be resolved takes any value.
        given: the section as written, plain values.
        everywhere: see `_unknown`.

    Returns:
        The keyword arguments with the types of the annotations (a tuple for `tuple[int, ...]`), and problems:
        unknown names, wrong types, missing arguments.
    """
    named, takes_any = arguments_of(cls)
    for name, origin in section.supplied.items():
        if name in section.model_fields and not takes(cls, name):
            rule = f"{cls.__name__}.__init__ must take '{name}', which plsc passes to it"
            return {}, [ConfigProblem(("name",), rule)]
        if name not in section.model_fields and name in given:
            return {}, [ConfigProblem((name,), f"comes from {origin}, set that (got {shown(given[name])})")]

    hints = _hints(cls)
    arguments = {  # under other names, since pydantic reserves some: `json`, `copy`, `_x`
        f"argument{index}": (
            hints.get(name, Any),
            Field(... if p.default is p.empty else p.default, alias=name),
        )
        for index, (name, p) in enumerate(named.items())
        if name not in section.model_fields and name not in section.supplied
    }
    own = {name: (Any, None) for name in section.model_fields}  # the section's own validation checks them
    extra = "allow" if takes_any else "forbid"
    rules = ConfigDict(extra=extra, allow_inf_nan=False, arbitrary_types_allowed=True)
    model = create_model(cls.__name__, __config__=rules, **own, **arguments)
    try:
        checked = model.model_validate_json(json.dumps(given), strict=True)
    except ValidationError as error:
        return {}, [*problems_of(error, model, given, everywhere)]
    values = dict(checked.model_extra or {})
    for name in checked.model_fields_set & arguments.keys():
        values[model.model_fields[name].alias] = getattr(checked, name)
    return values, []


def arguments_of(cls: type) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return the keyword arguments that a class names, and whether it takes any others too.

    An __init__ with `**options` passes them on to its base class, so the arguments of that are included.
    """
    named: dict[str, inspect.Parameter] = {}
    parameters: list[inspect.Parameter] = []
    for init in _inits(cls):
        parameters = list(inspect.signature(init).parameters.values())[1:]  # without self
        for p in parameters:
            if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD):
                named.setdefault(p.name, p)
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _inits(cls: type) -> list[Any]:
    """List the __init__ of a class, and those of the bases that receive its `**options`."""
    inits = []
    for base in cls.__mro__[:-1]:  # without object
        if "__init__" in vars(base):
            inits.append(base.__init__)
            options = inspect.signature(base.__init__).parameters.get("options")
            if options is None or options.kind is not options.VAR_KEYWORD:
                break
    return inits


def takes(cls: type, name: str) -> bool:
    """Return whether a class takes the keyword argument `name`."""
    named, takes_any = arguments_of(cls)
    return takes_any or name in named


def _hints(cls: type) -> dict[str, Any]:
    """Return the annotations of the arguments that can be resolved."""
    resolved: dict[str, Any] = {}
    for init in reversed(_inits(cls)):
        try:
            resolved.update(typing.get_type_hints(init, include_extras=True))
        except (
            NameError,
            TypeError,
        ):  # a name imported for type checkers only; `callable | None`, of what is no type
            hints = init.__annotations__
            resolved.update((name, hint) for name, hint in hints.items() if not isinstance(hint, str))
    return resolved
