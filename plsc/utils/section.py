"""Define the base classes for the sections of a config.

A section for a package is in the file config.py of that package. The other sections are in plsc/config.

A field's annotation is the type of its key, and its value or the first argument of `Field` is the default. A
user's class gets its keys from its constructor (`arguments_of`). The text under a field is the documentation.
`python tools/config_page.py` writes docs/config.md from these texts, the types and the bounds. To add a key,
add a field, and use it. The keys are listed nowhere else. Keys that depend on a name belong to a class for
that name:

    class Poly(Schedule):
        name: Literal["poly"] = "poly"
        power: float = Field(2.0, gt=0)
        "Exponent: 1 is a straight line."

    AnySchedule = one_of(Cosine, Poly, OwnSchedule)  # the first is the default

The message for a broken rule is pydantic's, with the value. plsc.config adds file, line and key.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import json
import re
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Union

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Tag,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError
from typing_extensions import NotRequired, TypedDict

from plsc.errors import UserError, escape, in_one_line
from plsc.utils.registry import Registry, did_you_mean, is_import_path, nearest
from plsc.utils.yaml_lines import KeyPath

_FINISHED = "finished"  # the type for a mistake that already has its message


def mistake(path: KeyPath, message: str) -> InitErrorDetails:
    """Make one of pydantic's mistakes from a finished message and the key's path below the section."""
    return InitErrorDetails(type=PydanticCustomError(_FINISHED, message), loc=path, input=None)


class Section(BaseModel):
    """Base class of all sections. A key with a capital first letter is a section. Any other key is a
    value."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    family: ClassVar[Sequence[type[Section]]] = ()  # the sections among which `name` chooses, see one_of
    elsewhere: ClassVar[Mapping[str, str]] = {}  # each key in the whole config -> the key with its sections
    other_values: ClassVar[Mapping[str, str]] = {}  # value in another program, in small letters -> ours
    others: ClassVar[Mapping[str, str]] = {}  # another program's key -> what to write in its place

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse a change, and tell how it is made."""
        if name in type(self).model_fields:
            key = type(self).elsewhere.get(name, name)
            raise UserError(
                f"{name}: a config cannot be changed; make a new one from it, "
                f'load(config, {{"{key}": ...}}) or Entry(config, {{"{key}": ...}})'
            )
        super().__setattr__(name, value)

    @model_validator(mode="wrap")
    @classmethod
    def _validated(cls, written: Any, validate: Any, info: ValidationInfo) -> Any:
        """Read an empty section as its defaults, and explain all mistakes at once.

        In the context {"of_run": True} a user's own class may be missing: whoever builds it finds that out.
        """
        if not isinstance(written, dict):
            return validate(written)
        written = {key: value for key, value in written.items() if value is not None or not key[:1].isupper()}
        values, mistakes = cls.read_keywords(written, bool(info.context and info.context["of_run"]))
        try:
            section = validate({**written, **values})
        except ValidationError as error:
            mistakes += cls.explain(error, written, cls.model_fields)
        if mistakes:
            raise ValidationError.from_exception_data(cls.__name__, mistakes)
        return section

    @classmethod
    def read_keywords(
        cls, written: Mapping[str, Any], of_run: bool = False
    ) -> tuple[dict[str, Any], list[InitErrorDetails]]:
        """Return the keyword arguments among the keys, and the mistakes in them. Only a ClassSection has
        any."""
        return {}, []

    @classmethod
    def explain(cls, error: ValidationError, written: Any, known: Collection[str]) -> list[InitErrorDetails]:
        """List the mistakes that pydantic found in `written`. `known` are the keys that it may have."""
        mistakes, broken = [], {}
        for detail in error.errors():
            path, value = (), written
            for part in detail["loc"]:
                # Otherwise it is pydantic's name for one of a union's alternatives.
                with contextlib.suppress(LookupError, TypeError):
                    path, value = (*path, part), value[part]
            missing = detail["type"] == "missing" and isinstance(value, dict)
            if missing or detail["type"] == _FINISHED:
                absent = detail["loc"][-1:] if path[-1:] != detail["loc"][-1:] else ()  # a required key
                mistakes.append(mistake((*path, *absent), "is required" if missing else detail["msg"]))
            elif detail["type"] == "extra_forbidden":
                mistakes.append(mistake(path, cls._unknown(path[-1], written, known)))
            else:
                if not path and not {*known}.isdisjoint(detail["loc"]):  # a default that breaks a rule
                    path, value = detail["loc"], detail["input"]
                broken.setdefault(path, (value, []))[1].append(cls._rule(detail, path))
        for path, (value, rules) in broken.items():
            if any(other != path and other[: len(path)] == path for other in broken):
                continue  # another alternative of a union, which has a mistake inside, is meant
            rule = " or ".join(dict.fromkeys(rules)).replace(" or must be ", " or ")
            hint = did_you_mean(
                cls.other_values.get(str(value).lower(), value), re.findall("'([^']+)'", rule)
            )
            mistakes.append(mistake(path, f"{rule} (got {formatted(value)}){hint}"))
        return mistakes

    @classmethod
    def _rule(cls, detail: Mapping[str, Any], path: KeyPath) -> str:
        """Return the rule that a value breaks, worded to end a sentence that begins with the key."""
        if cls.family and path == ("name",):
            own = ", or your own as package.module:Class" if issubclass(cls.family[-1], ClassSection) else ""
            return f"must be one of {', '.join(map(repr, names_of(cls.family)))}{own}"
        if detail["type"] == "needs_python_object":  # the annotation is a class, or a type[...]
            return "takes a Python object; pass that in a class of your own (docs/extend.md), not in a config"
        rule = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        if detail["type"] == "list_type" and isinstance(detail["input"], str):
            rule = f"must be a list, such as [{escape(detail['input'][:40])}]"
        rule = re.sub("a valid (array|list)", "a list", rule)
        rule = rule.replace("Field required", "must be a longer list")
        return re.sub("an object|a valid dictionary.*", "a mapping of keys", rule)

    @classmethod
    def _unknown(cls, key: str, written: Mapping[str, Any], known: Collection[str]) -> str:
        """Return the message for a key that the section does not have."""
        others = names_of([kind for kind in cls.family if key in kind.model_fields])
        if others:
            name = written.get("name", cls.model_fields["name"].default)
            longer = [own for own in known if own.startswith(key)]  # margin1, margin2, margin3
            instead = f", which has {', '.join(longer)}" if longer else ""
            return (
                f"has no meaning with {name}{instead}, only with {', '.join(others)} (got "
                f"{formatted(written[key])})"
            )
        if key in cls.others:
            return f"unknown key; {cls.others[key]}"
        near = difflib.get_close_matches(key, cls.elsewhere, n=1, cutoff=0.8)
        hint = did_you_mean(key, known) or "".join(
            f", did you mean '{cls.elsewhere[word]}'?" for word in near
        )
        return f"unknown key{hint or ' (one of ' + ', '.join(known) + ')'}"


class ClassSection(Section, extra="allow"):
    """A section that names a class in a registry. Its further keys, pydantic's `model_extra`, are that
    class's keyword arguments."""

    registry: ClassVar[Registry]
    supplied: ClassVar[Collection[str]] = ()  # arguments that plsc passes and no config contains

    def build(self, **supplied: Any) -> Any:
        """Call the class with the config's keywords, and with those `supplied` arguments that it takes.

        Raises UserError for any error in a user's own class, with the class and the place in its code.
        """
        cls = self.registry.get(self.name)
        arguments, takes_any = arguments_of(cls)
        taken = {name: value for name, value in supplied.items() if takes_any or name in arguments}
        try:
            return cls(**{**taken, **self.model_extra})
        except UserError:
            raise
        except Exception as error:
            if not is_import_path(self.name):
                raise
            raise UserError(f"{self.name}: {in_one_line(error)}") from error

    @classmethod
    def read_keywords(
        cls, written: Mapping[str, Any], of_run: bool = False
    ) -> tuple[dict[str, Any], list[InitErrorDetails]]:
        """Check the keyword arguments against the class's signature, and convert them to its types."""
        given = {key: value for key, value in written.items() if key not in cls.model_fields}
        default = cls.model_fields["name"].default
        name = written.get("name", default)
        if not isinstance(name, str) or (name == default and not given):
            return {}, []  # the default class needs no arguments, so Paddle is not imported
        try:
            arguments, takes_any = arguments_of(cls.registry.get(name))
        except UserError as error:
            if is_import_path(name):
                return {}, [] if of_run else [mistake(("name",), str(error))]
            mistakes = [mistake(("name",), str(error))]
            # A misspelt name does not hide the misspelt keys beside it.
            if given and (near := nearest(name, cls.registry.builtin, cutoff=0.8)):
                others = cls.read_keywords({**written, "name": near})[1]
                mistakes += [each for each in others if each["type"].message_template != "is required"]
            return {}, mistakes
        own = {key: kind for key, kind in arguments.items() if key not in (*cls.model_fields, *cls.supplied)}
        keywords = TypedDict(name, own)
        keywords.__pydantic_config__ = ConfigDict(
            extra="allow" if takes_any else "forbid", allow_inf_nan=False, arbitrary_types_allowed=True
        )
        try:
            return TypeAdapter(keywords).validate_json(json.dumps(given), strict=True), []
        except ValidationError as error:
            return {}, cls.explain(error, written, [*cls.model_fields, *own])


def arguments_of(cls: type) -> tuple[dict[str, Any], bool]:
    """Return a class's keyword arguments with their types, and whether it takes any other.

    An __init__ with `**options` passes them to its base class, whose arguments are included. A type that
    cannot be resolved counts as Any. An example is a name that is imported for type checkers only.
    """
    arguments: dict[str, Any] = {}
    others: list[str] = []
    for init in (vars(base)["__init__"] for base in cls.__mro__[:-1] if "__init__" in vars(base)):
        parameters = list(inspect.signature(init).parameters.values())[1:]  # without self
        try:
            hints = typing.get_type_hints(init, include_extras=True)
        except (NameError, TypeError):
            hints = {}
        for p in parameters:
            if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD):
                kind = hints.get(p.name, Any)
                arguments.setdefault(p.name, kind if p.default is p.empty else NotRequired[kind])
        others = [p.name for p in parameters if p.kind is p.VAR_KEYWORD]
        if others != ["options"]:
            break
    return arguments, bool(others)


def names_of(kinds: Iterable[type[Section]]) -> list[str]:
    """List the names that choose one of these sections. A section for a user's own class has no name."""
    return [name for kind in kinds for name in typing.get_args(kind.model_fields["name"].annotation)]


def kind_named(kinds: Sequence[type[Section]], name: Any) -> type[Section]:
    """Return the section with this name. Return the first section if the name is missing or unknown."""
    is_own = isinstance(name, str) and is_import_path(name)
    return next(
        (kind for kind in kinds if name in names_of([kind]) or (is_own and issubclass(kind, ClassSection))),
        kinds[0],
    )


def one_of(*kinds: type[Section]) -> Any:
    """Return the annotation for a field that holds one of several sections.

    The section's `name` chooses the section. Without a name it is the first. If the last one is a
    ClassSection, it is for a user's own class.
    """
    for kind in kinds:
        kind.family = kinds

    def tag(value: Any) -> str:
        if isinstance(value, Section):
            return type(value).__name__
        return kind_named(kinds, value.get("name") if isinstance(value, Mapping) else None).__name__

    alternatives = tuple(Annotated[kind, Tag(kind.__name__)] for kind in kinds)
    return Annotated[Union[alternatives], Discriminator(tag)]  # noqa: UP007 (it takes a tuple)


def sections_in(annotation: Any) -> list[type[Section]]:
    """List the sections that a field may hold. Unions and list items are included."""
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        return [annotation] if issubclass(annotation, Section) else []
    return [section for argument in typing.get_args(annotation) for section in sections_in(argument)]


def formatted(value: Any) -> str:
    """Format a value for an error message: as JSON, text in quotes, with at most 60 characters."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def first_problem(error: ValidationError) -> tuple[str, str]:
    """Return the first error's dotted key and pydantic's message."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return ".".join(map(str, first["loc"])), first["msg"]
