"""Check the keyword arguments of an optimizer that a config names, by its class.

Momentum, AdamW and LARS have only the keys of the schema. Any other name is a class of paddle.optimizer, or a
registered one, or "package.module:Class": it is imported, and Paddle with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from plsc.config.layers import Layers
from plsc.config.schema import RULES, OptimizerCfg, RuleCfg, is_import_path
from plsc.errors import UserError
from plsc.utils.messages import ConfigProblem, arguments_of, check_keywords, describe, shown, takes
from plsc.utils.registry import OPTIMIZERS

_SECTION = ("Optimizer",)
DECAYS = ("weight_decay", "lamb_weight_decay")  # arguments that Optimizer.weight_decay may be


class _NoKeywords:
    """Stands for the classes of RULES, whose arguments are the keys of the schema."""

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


def check_optimizer(layers: Layers, every_key: list[str]) -> dict[str, Any]:
    """Check the section Optimizer by the class that its name names.

    Returns the further keys as the class annotates them. Errors are added to `layers`.
    """
    written = layers.get(_SECTION)
    if not isinstance(written, dict):
        return {}  # pydantic reports what is no section
    name = written.get("name", OptimizerCfg.model_fields["name"].default)
    if not isinstance(name, str):
        return {}
    try:
        cls = _NoKeywords if name in RULES else class_of(name)
    except UserError as error:
        layers.add_error(ConfigProblem((*_SECTION, "name"), str(error)))
        return {}
    values, problems = check_keywords(OptimizerCfg, cls, written, every_key)
    if cls is not _NoKeywords:
        problems += _not_taken(cls, name, written)
        problems += _head_unnamed(name, written.get("head"))
        problems += _of_another_type(cls, values)
    for problem in problems:
        layers.add_error(ConfigProblem((*_SECTION, *problem.path), problem.message))
    return values


def _not_taken(cls: type, name: str, written: dict[str, Any]) -> Iterator[ConfigProblem]:
    """Yield a problem for each key of the schema that a class does not take as an argument."""
    arguments = {key: (key,) for key in RuleCfg.only_with} | {"weight_decay": DECAYS}
    for key, alike in arguments.items():
        if written.get(key) is not None and not any(takes(cls, argument) for argument in alike):
            rule = f"has no meaning with {name}, whose class takes no '{key}'"
            yield ConfigProblem((key,), f"{rule} (got {shown(written[key])})")


def _of_another_type(cls: type, values: dict[str, Any]) -> Iterator[ConfigProblem]:
    """Yield a problem for each further key whose type is not that of the argument's default.

    Paddle's annotations cannot be resolved at run time, and its classes find such a mistake in the first step.
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
