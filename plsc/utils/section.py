"""Define what the sections of a config have in common; each lies beside its owner, in a file config.py.

The text under a field is its documentation: docs/config.md is generated from it and from types and bounds. To
add a key, add a field and use it; nothing else lists the keys. Checks within a section are its methods.

    class HeadCfg(Section):
        scale: float = Field(64.0, gt=0)
        "Factor on the cosines before the softmax."
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator, model_validator

from plsc.errors import UserError
from plsc.utils.messages import ConfigProblem, Problems, check_keywords, problems_of, takes
from plsc.utils.registry import Registry


@dataclass(frozen=True)
class Names:
    """A set of names that cannot all be listed: a description for messages, and a test of membership."""

    text: str
    has: Callable[[str], bool]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.has(name)


def listed(names: tuple[str, ...] | Names) -> str:
    """Format names for a message."""
    return names.text if isinstance(names, Names) else ", ".join(names)


def few_for_this_machine(value: int | None) -> int | None:
    """Return `value`, a number of threads or processes; ValueError if it is too large for this machine."""
    processors = os.cpu_count() or 1
    most = max(64, 8 * processors)
    if value is not None and value > most:
        raise ValueError(f"must be at most {most} on this machine of {processors} processors")
    return value


# Marks a field or a section: resuming with another value gives the same weights, except for rounding.
NOT_TRAINING = {"affects_training": False}


# Marks a field: the folder of another run, or of one of its checkpoints.
OTHER_RUN = {**NOT_TRAINING, "is_run": True}


def is_run(section: type[BaseModel], path: Sequence[str]) -> bool:
    """Return whether the key at `path` below a section names another run."""
    return [*_marks(section, path)][-1].get("is_run", False)


def affects_training(section: type[BaseModel], path: Sequence[str]) -> bool:
    """Return whether the key at `path` below a section affects the training; True for an unknown key."""
    return all(marks.get("affects_training", True) for marks in _marks(section, path))


def _marks(section: type[BaseModel], path: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the marks of the field of each key at `path`, none of an unknown key, which is the last."""
    for key in path:
        field = getattr(section, "model_fields", {}).get(key)
        if field is None:
            yield {}
            return
        yield field.json_schema_extra or {}
        section = field.annotation
        section = next((each for each in get_args(section) if hasattr(each, "model_fields")), section)


class Section(BaseModel):
    """The rules of all sections. A key with a capital first letter is a section, any other is a value."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    # key -> the `name`s with which it has a meaning
    only_with: ClassVar[dict[str, tuple[str, ...] | Names]] = {}
    exclusive: ClassVar[tuple[tuple[str, str], ...]] = ()  # pairs of keys of which one at most may be given

    @field_validator("*")
    @classmethod
    def _has_meaning(cls, value: Any, info: ValidationInfo) -> Any:
        names = cls.only_with.get(info.field_name)
        if (
            names
            and value is not None
            and info.data.get("name") is not None
            and info.data["name"] not in names
        ):
            raise ValueError(f"has no meaning with {info.data['name']}, only with {listed(names)}")
        return value

    def applies(self, key: str) -> bool:
        """Say whether a key has a meaning in this section, so that it is listed."""
        names = self.only_with.get(key)
        return not names or self.name in names


class NamesClass(Section):
    """A section that names a class, whose signature says which further keys and values it takes."""

    @classmethod
    def of_class(
        cls, written: dict[str, Any], everywhere: Iterable[str]
    ) -> tuple[dict[str, Any], list[ConfigProblem]]:
        """Check what is written by the class that it names.

        Returns the keys that the class's annotations give another type (a tuple for `tuple[int, ...]`), and
        problems. everywhere: see `explain`.
        """
        raise NotImplementedError

    @model_validator(mode="wrap")
    @classmethod
    def _by_class(cls, written: Any, validate: Any, info: ValidationInfo) -> Any:
        if not isinstance(written, dict):
            return validate(written)
        typed, problems = cls.of_class(written, info.context or ())
        if not problems:
            return validate({**written, **typed})
        try:
            validate(written)
        except ValidationError as error:
            problems += problems_of(error, cls, written, info.context or ())
        raise Problems(problems)


class Plug(NamesClass, extra="allow"):
    """A section that names a class in a registry; its further keys are keyword arguments of that class."""

    registry: ClassVar[Registry]
    supplied: ClassVar[dict[str, str]] = {}  # arguments that plsc passes -> the keys that they come from

    @property
    def keywords(self) -> dict[str, Any]:
        """The keyword arguments from the config, as the class annotates them."""
        return dict(self.model_extra)

    def build(self, **supplied: Any) -> Any:
        """Call the class with its keywords, and the `supplied` arguments that it takes and lacks."""
        cls = self.registry.get(self.name)
        taken = {name: value for name, value in supplied.items() if takes(cls, name)}
        return cls(**{**taken, **self.keywords})

    @classmethod
    def of_class(
        cls, written: dict[str, Any], everywhere: Iterable[str]
    ) -> tuple[dict[str, Any], list[ConfigProblem]]:
        default = cls.model_fields["name"].default
        name = written.get("name", default)
        if not isinstance(name, str) or (name == default and written.keys() <= cls.model_fields.keys()):
            return {}, []  # the default classes work without arguments: no need to import them, and Paddle
        try:
            named = cls.registry.get(name)
        except UserError as error:
            return {}, [ConfigProblem(("name",), str(error))]
        values, problems = check_keywords(cls, named, written, everywhere)
        return values, [ConfigProblem(path, text + cls.hint(name, path[0], text)) for path, text in problems]

    @classmethod
    def hint(cls, name: str, key: str, text: str) -> str:
        """Return what helps with a problem of a keyword argument of the class `name`, to follow its text."""
        return ""
