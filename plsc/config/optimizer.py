"""Define the section Optimizer, and check the keyword arguments of the optimizer that it names, by its class.

Momentum, AdamW and LARS have only the keys of the section. Any other name is a class of paddle.optimizer, or
a registered one, or "package.module:Class": it is imported, and Paddle with it.
"""

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from plsc.errors import UserError
from plsc.utils.messages import ConfigProblem, arguments_of, check_keywords, describe, shown, takes
from plsc.utils.registry import OPTIMIZERS, is_import_path
from plsc.utils.section import Names, NamesClass, Section

RULES = ("Momentum", "AdamW", "LARS")  # for backbone and class centres; others are Paddle's, for the backbone

DECAYS = ("weight_decay", "lamb_weight_decay")  # arguments that Optimizer.weight_decay may be

# What null stands for: of AdamW the decay of InsightFace's vision transformers, of LARS that of You et al.
_BY_NAME = {
    "weight_decay": {"Momentum": 5e-4, "AdamW": 0.1, "LARS": 5e-4},
    "epsilon": {"AdamW": 1e-8, "LARS": 0.0},
}

# Arrays of a parameter's size that an optimizer keeps beside it; of others two, as most in paddle.optimizer
# have.
_MOMENTS = {"Momentum": 1, "LARS": 1, "AdamW": 2, "SGD": 0, "Adagrad": 1, "RMSProp": 3}


def moments_of(name: str) -> int:
    """Return how many arrays of a parameter's size the optimizer of this name keeps beside it."""
    return _MOMENTS.get(name, 2)


def _with(*rules: str) -> Names:
    """The names of `rules`, and of all other optimizers: their own signatures say what they take."""
    own = f"{' and '.join(rules)}, and classes that take it"
    return Names(own, lambda name: name in rules or name not in RULES)


def _refuse_zero_epsilon(name: str | None, value: float | None) -> float | None:
    if value == 0 and name == "AdamW":
        raise ValueError(
            "must be above 0 with AdamW: a class or weight without a gradient would become 0 / 0"
        )
    return value


class RuleCfg(Section):
    """The constants of the three rules that backbone and class centres have in common."""

    only_with = {
        "momentum": _with("Momentum", "LARS"),
        "nesterov": _with("Momentum"),
        "beta1": _with("AdamW"),
        "beta2": _with("AdamW"),
        "epsilon": _with("AdamW", "LARS"),
        "coefficient": _with("LARS"),
    }

    name: str | None = None
    """The rule."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Share of the last step's velocity that is kept; 0 is plain SGD."""
    nesterov: bool = False
    """Takes the gradient where the velocity leads to (Nesterov's momentum)."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """Share of the mean gradient that is kept from step to step."""
    beta2: float = Field(0.999, ge=0, lt=1)
    """Share of the mean squared gradient that is kept. Try 0.95 to 0.98 when the loss of a transformer
    jumps."""
    epsilon: float | None = Field(None, ge=0)
    """Added to the divisor: of AdamW the root of the mean squared gradient, of LARS the norm of the gradient.
    null: 1e-8 for AdamW, 0 for LARS."""
    coefficient: float = Field(0.001, gt=0, le=1)
    """The trust coefficient: length of a layer's step by that of its weights, at learning rate 1."""
    weight_decay: float | None = Field(None, ge=0, le=10)
    """L2 coefficient on weights and class centres; AdamW's is decoupled, a share of the learning rate.
    Biases, norms
    and slopes get none. null: 5e-4 for Momentum and LARS, 0.1 for AdamW, for another class what it has by
    itself.
    LARS needs one: without decay, it is Momentum."""

    @field_validator("weight_decay")
    @classmethod
    def _lars_decays(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value == 0 and info.data.get("name") == "LARS":
            raise ValueError(
                "must be above 0 with LARS, whose rate follows the norms only where there is decay"
            )
        return value

    @field_validator("epsilon")
    @classmethod
    def _adamw_divides(cls, value: float | None, info: ValidationInfo) -> float | None:
        return _refuse_zero_epsilon(info.data.get("name"), value)

    def applies(self, key: str) -> bool:
        # Another class has its own defaults: only what is written goes to it.
        return super().applies(key) and (
            self.name in RULES or key not in RuleCfg.only_with or key in self.model_fields_set
        )

    def number(self, key: str) -> float | None:
        """Return the value of a key; null's by the name, None if that has none."""
        value = getattr(self, key)
        return value if value is not None else _BY_NAME.get(key, {}).get(self.name)


class HeadOptimizerCfg(RuleCfg):
    """The optimizer of the class centres, as far as it differs from the backbone's. A key that is left out is
    the backbone's where the names are alike, else the default of `name`."""

    name: Literal[RULES] | None = None
    """null: the backbone's."""
    lr_scale: float = Field(1.0, gt=0, le=1000)
    """Factor on the learning rate of the class centres."""

    @model_validator(mode="after")
    def _differs(self) -> "HeadOptimizerCfg":
        if all(getattr(self, key) is None for key in self.model_fields_set):
            raise ValueError("names nothing that differs from the backbone's; leave it out")
        return self

    def applies(self, key: str) -> bool:
        return key in self.model_fields_set


class GroupCfg(Section):
    """Parameters of the backbone that are trained otherwise than the rest."""

    match: str = Field(min_length=1)
    """A regular expression that is searched in the names of the backbone's parameters (docs/training.md says
    how to list them): `^conv1` or `mlp.fc1`. The first group that fits a name counts."""
    lr_scale: float | None = Field(None, gt=0, le=1000)
    """Factor on the learning rate. 1 only keeps the parameters from the groups below."""
    weight_decay: float | None = Field(None, ge=0, le=10)
    """In place of the section's, on matrices and kernels."""
    freeze: bool = False
    """Leaves the parameters as they are; the running statistics of a batch norm whose parameters are all
    frozen, too."""

    @field_validator("match")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"is no regular expression: {error.msg} at position {error.pos or 0}") from None
        return value

    @model_validator(mode="after")
    def _has_effect(self) -> "GroupCfg":
        if self.freeze and (self.lr_scale, self.weight_decay) != (None, None):
            raise ValueError("freezes its parameters, so lr_scale and weight_decay have no meaning; keep one")
        if not self.freeze and self.lr_scale is None and self.weight_decay is None:
            raise ValueError("changes nothing; give it lr_scale, weight_decay or freeze: true")
        return self


class OptimizerCfg(RuleCfg, NamesClass, extra="allow"):
    """The optimizer of the backbone and of the class centres. Further keys are keyword arguments of a class
    of paddle.optimizer or of your own."""

    # arguments of Paddle's classes that plsc passes -> the keys that they come from
    supplied: ClassVar[dict[str, str]] = {
        "learning_rate": "LRScheduler.learning_rate",
        "parameters": "the backbone",
        "grad_clip": "Optimizer.clip_norm",
        "lamb_weight_decay": "Optimizer.weight_decay",
    }

    name: str = "Momentum"
    """`Momentum`, SGD with momentum, usual for convolutional networks; `AdamW`, usual for transformers, at a
    learning rate of about 0.001 (docs/training.md#optimizers); `LARS`, for batches of many thousands. For the
    backbone alone any class of paddle.optimizer (`Adam`, `Lamb`, `RMSProp`), or your own as
    `package.module:Class`; then `head` names one of the three."""
    clip_norm: float | None = Field(None, gt=0)
    """Upper bound on the global norm of the backbone's gradient, all groups together; null does not clip. Try
    5 when the loss jumps."""
    head: HeadOptimizerCfg | None = None
    """What differs for the class centres: `{name: Momentum, lr_scale: 0.1}`. null: nothing."""
    groups: list[GroupCfg] = []
    """What differs for some parameters of the backbone: `[{match: ^conv1, freeze: true}, {match: ^layer,
    lr_scale: 0.1}]`. A group that fits no name is refused."""
    freeze_norms: bool = False
    """Leaves all norm layers as they are: gain, bias, and batch norms' running statistics. For fine-tuning
    with small batches."""
    layer_decay: float | None = Field(None, gt=0, le=1)
    """Factor on the learning rate from a layer to the one before it (Bao et al., "BEiT", 2021), for
    fine-tuning a
    `FaceViT_*`: try 0.65 to 0.85. null: all layers have the same rate."""

    @field_validator("head")
    @classmethod
    def _fits(cls, value: HeadOptimizerCfg | None, info: ValidationInfo) -> HeadOptimizerCfg | None:
        name = value and (value.name or info.data.get("name"))
        for key in sorted(value.model_fields_set & cls.only_with.keys()) if name else ():
            if name not in cls.only_with[key]:
                raise ValueError(f"{key} has no meaning with {name}")
        _refuse_zero_epsilon(name, value and value.epsilon)
        return value

    @classmethod
    def of_class(
        cls, written: dict[str, Any], everywhere: Iterable[str]
    ) -> tuple[dict[str, Any], list[ConfigProblem]]:
        return check_optimizer(written.get("name", cls.model_fields["name"].default), written, everywhere)

    @property
    def keywords(self) -> dict[str, Any]:
        """The keyword arguments for a class that is none of RULES, but the weight decay."""
        given = {key: getattr(self, key) for key in RuleCfg.only_with if self.applies(key)}
        return {**given, **self.model_extra}

    @property
    def of_head(self) -> HeadOptimizerCfg:
        """The optimizer of the class centres with all that it takes over from the backbone's; no null is
        left."""
        given = {} if self.head is None else self.head.model_dump(exclude_unset=True, exclude_none=True)
        name = given.get("name", self.name)
        source = self if name == self.name else HeadOptimizerCfg(name=name)
        keys = [key for key in RuleCfg.model_fields if name in RuleCfg.only_with.get(key, RULES)]
        rule = {key: source.number(key) for key in keys}
        return HeadOptimizerCfg(**{**rule, **given})


class _NoKeywords:
    """Stands for the classes of RULES, whose arguments are the keys of the section."""

    def __init__(self) -> None: ...


def class_of(name: str) -> type:
    """Return the class of an optimizer that is none of RULES. Raises UserError for what is no optimizer."""
    known = is_import_path(name) or name in OPTIMIZERS.names()
    cls = OPTIMIZERS.get(name if known else f"paddle.optimizer:{name}")
    step = list(inspect.signature(cls.step).parameters.values())[1:]
    if needed := [p.name for p in step if p.default is p.empty]:
        raise UserError(
            f"optimizer '{name}': its step() needs a {needed[0]}, which a training has none of; take another"
        )
    return cls


def check_optimizer(
    name: Any, written: dict[str, Any], everywhere: Iterable[str]
) -> tuple[dict[str, Any], list[ConfigProblem]]:
    """Check the section Optimizer by the class that its name names.

    Returns the further keys as the class annotates them, and problems.
    """
    if not isinstance(name, str):
        return {}, []  # pydantic reports it
    try:
        cls = _NoKeywords if name in RULES else class_of(name)
    except UserError as error:
        return {}, [ConfigProblem(("name",), str(error))]
    values, problems = check_keywords(OptimizerCfg, cls, written, everywhere)
    if cls is not _NoKeywords:
        problems += _not_taken(cls, name, written)
        problems += _head_unnamed(name, written.get("head"))
        problems += _of_another_type(cls, values)
    return values, problems


def _not_taken(cls: type, name: str, written: dict[str, Any]) -> Iterator[ConfigProblem]:
    """Yield a problem for each key of the section that a class does not take as an argument."""
    arguments = {key: (key,) for key in RuleCfg.only_with} | {"weight_decay": DECAYS}
    for key, alike in arguments.items():
        if written.get(key) is not None and not any(takes(cls, argument) for argument in alike):
            rule = f"has no meaning with {name}, whose class takes no '{key}'"
            yield ConfigProblem((key,), f"{rule} (got {shown(written[key])})")


def _of_another_type(cls: type, values: dict[str, Any]) -> Iterator[ConfigProblem]:
    """Yield a problem for each further key whose type is not that of the argument's default.

    Paddle's annotations cannot be resolved at run time, and its classes find such a mistake in the first
    step.
    """
    for key, parameter in arguments_of(cls)[0].items():
        kind = type(parameter.default)
        if key not in values or kind not in (bool, int, float, str):
            continue
        alike = (int, float) if kind is float else kind
        value = values[key]
        if not isinstance(value, alike) or (isinstance(value, bool) and kind is not bool):
            yield ConfigProblem((key,), f"must be {describe(kind)} (got {shown(value)})")


def _head_unnamed(name: str, head: Any) -> Iterator[ConfigProblem]:
    """Yield a problem if the class centres' optimizer is not named, where the backbone's is for it alone."""
    if not isinstance(head, dict) or head.get("name") is None:
        rule = (
            f"must name the class centres' optimizer, such as {{name: Momentum}} (one of {', '.join(RULES)})"
        )
        yield ConfigProblem(("head",), f"{rule}: {name} is for the backbone alone (got {shown(head)})")
