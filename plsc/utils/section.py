"""Define what the sections of a config have in common; each lies beside its owner, in a file config.py.

The text under a field is its documentation: docs/config.md is made from it, and from types and bounds. To add
a key, add a field and use it; nothing else lists the keys. What depends on a name is a class of its own:

    class Poly(Schedule):
        name: Literal["poly"] = "poly"
        power: float = Field(2.0, gt=0)
        "Exponent: 1 is a straight line."

    AnySchedule = one_of(Cosine, Poly, OwnSchedule)  # the first is the default
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Union

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Tag,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from plsc.errors import UserError
from plsc.utils.messages import (
    KINDS,
    ConfigProblem,
    Problems,
    check_keywords,
    names_of,
    problems_of,
    takes,
)
from plsc.utils.registry import Registry, is_import_path


class Section(BaseModel):
    """The rules of all sections. A key with a capital first letter is a section, any other is a value."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Plug(Section, extra="allow"):
    """A section that names a class of a registry; its further keys are keyword arguments of that class."""

    registry: ClassVar[Registry]
    supplied: ClassVar[dict[str, str]] = {}  # arguments that plsc passes -> the keys that they come from

    @classmethod
    def class_of(cls, name: str) -> type:
        """Return the class of a name. Raises UserError."""
        return cls.registry.get(name)

    @property
    def keywords(self) -> dict[str, Any]:
        """The keyword arguments from the config, as the class annotates them."""
        return dict(self.model_extra)

    def build(self, **supplied: Any) -> Any:
        """Call the class with its keywords, and the `supplied` arguments that it takes and lacks."""
        cls = self.class_of(self.name)
        taken = {name: value for name, value in supplied.items() if takes(cls, name)}
        return cls(**{**taken, **self.keywords})

    @model_validator(mode="wrap")
    @classmethod
    def _by_class(cls, written: Any, validate: Any, info: ValidationInfo) -> Any:
        """Check what is written by the class that it names, together with the section's own keys."""
        default = cls.model_fields["name"].default
        name = written.get("name", default) if isinstance(written, dict) else None
        if not isinstance(name, str) or (name == default and written.keys() <= cls.model_fields.keys()):
            return validate(written)  # the default class works without arguments: Paddle is not imported
        try:
            values, problems = check_keywords(cls, cls.class_of(name), written, info.context or ())
        except UserError as error:
            values, problems = {}, [ConfigProblem(("name",), str(error))]
        if not problems:
            return validate({**written, **values})
        problems = [ConfigProblem(path, text + cls.hint(name, path[0], text)) for path, text in problems]
        try:
            validate(written)
        except ValidationError as error:
            problems += problems_of(error, cls, written, info.context or ())
        raise Problems(problems)

    @classmethod
    def hint(cls, name: str, key: str, text: str) -> str:
        """Return what helps with a problem of a keyword argument of the class `name`, to follow its text."""
        return ""


def kind_named(kinds: Sequence[type[Section]], name: Any) -> type[Section]:
    """Return the section of a name: one that has it, or else the one for a class of one's own, or the
    first."""
    for kind in kinds:
        if name in names_of(kind):
            return kind
    is_own = isinstance(name, str) and is_import_path(name)
    return next((kind for kind in kinds if is_own and issubclass(kind, Plug)), kinds[0])


def one_of(*kinds: type[Section]) -> Any:
    """Annotate a section that is one of several, by its `name`; a Plug among them is for a class of one's
    own.

    Without a name it is the first. A name that none has is refused.
    """
    KINDS.update({kind.__name__: (kind, kinds) for kind in kinds})

    def tag(value: Any) -> str:
        if isinstance(value, Section):
            return type(value).__name__
        return kind_named(kinds, value.get("name") if isinstance(value, Mapping) else None).__name__

    alternatives = tuple(Annotated[kind, Tag(kind.__name__)] for kind in kinds)
    return Annotated[Union[alternatives], Discriminator(tag)]  # noqa: UP007 of a tuple
