"""Rules in words, and the keyword arguments of classes."""

import collections.abc
import typing
from pathlib import Path
from typing import Any, Literal, Union

import pytest
from pydantic import Field

from plsc.backbones.config import ModelCfg
from plsc.data.config import TrainDatasetCfg
from plsc.errors import UserError
from plsc.utils.messages import ConfigError, check_keywords, describe, shown, takes


@pytest.mark.parametrize(
    "annotation, limits, words",
    [
        (int, {"ge": 1}, "an integer >= 1"),
        (Union[int, None], {"gt": 0}, "an integer > 0 or null"),  # noqa: UP007 (users may write it)
        (float, {"gt": 0, "le": 1}, "a number in (0, 1]"),
        (float, {"ge": 0, "lt": 1}, "a number in [0, 1)"),
        (float, {"lt": 1}, "a number < 1"),
        (str, {"min_length": 1}, "text (not empty)"),
        (bool, {}, "true or false"),
        (Literal["a", "b"], {}, "one of a, b"),
        (Literal["a"], {}, "a"),
        (list[typing.Annotated[float, Field(gt=0)]], {}, "a list, each a number > 0"),
        (tuple[int, ...], {}, "a list, each an integer"),
        (tuple[int, int], {}, "a list of 2 values"),
        (collections.abc.Sequence[str], {}, "a list, each text"),
        (list, {}, "a list"),
        (dict[str, int], {}, "a mapping of keys"),
        (ModelCfg, {}, "a mapping of keys"),
        (Path, {}, None),
        (Any, {}, None),
    ],
)
def test_describe(annotation, limits, words):
    assert describe(annotation, Field(**limits).metadata) == words


def test_shown_is_short():
    assert shown(None) == "null" and shown(True) == "true" and shown("x") == "'x'"
    assert shown([1] * 100) == "[" + "1, " * 18 + "1,..."
    assert len(shown("x" * 100)) == 60


def test_config_error_is_one_line_each():
    error = ConfigError(["a", "b\nc"])
    assert isinstance(error, UserError)
    assert error.errors == ["a", "b c"] and str(error) == "a\nb c"


class Net:
    def __init__(
        self,
        embedding_size: int,
        depth: int,
        widths: tuple[int, ...] = (8,),
        shape: tuple[int, float] = (1, 1.0),
        norm: Literal["batch", "layer"] = "batch",
        rates: "list[float]" = (),
        path: Path = Path(),
        copy: bool = False,
        anything=None,
    ):
        pass


class Open:
    def __init__(self, width: int = 1, **others):
        pass


class Unresolved:
    def __init__(self, embedding_size: "Missing", width: "int" = 1, depth: int = 1):  # noqa: F821
        pass


class Narrow:
    def __init__(self, width: int = 1):
        pass


def check(cls, given, section=ModelCfg):
    values, problems = check_keywords(section, cls, given, ["Head.margin", "Model.name"])
    return values, [(".".join(map(str, problem.path)), problem.message) for problem in problems]


def test_values_come_as_annotated():
    given = {"depth": 3, "widths": [1, 2], "path": "x", "copy": True, "anything": {"a": [1]}, "rates": [1]}
    values, problems = check(Net, {"name": "Net", "embedding_size": 4, **given})
    assert problems == []
    assert values == {**given, "widths": (1, 2), "path": Path("x"), "rates": [1.0]}


@pytest.mark.parametrize(
    "given, path, message",
    [
        ({}, "depth", "is required"),
        ({"depth": 3.0}, "depth", "must be an integer (got 3.0)"),
        ({"depth": 3, "widht": 1}, "widht", "unknown key, did you mean 'widths'?"),
        ({"depth": 3, "embeding_size": 1}, "embeding_size", "unknown key, did you mean 'embedding_size'?"),
        ({"depth": 3, "margin": 1}, "margin", "unknown key, did you mean 'Head.margin'?"),
        ({"depth": 3, "widths": 8}, "widths", "must be a list, each an integer (got 8)"),
        ({"depth": 3, "widths": [8, "x"]}, "widths.1", "must be an integer (got 'x')"),
        ({"depth": 3, "shape": [8, True]}, "shape.1", "must be a valid number (got true)"),
        ({"depth": 3, "rates": [0.5, None]}, "rates.1", "must be a number (got null)"),
        ({"depth": 3, "rates": [float("nan")]}, "rates.0", "must be a number (got .nan)"),
        (
            {"depth": 3, "norm": "bathc"},
            "norm",
            "must be one of batch, layer (got 'bathc'), did you mean 'batch'?",
        ),
        ({"depth": 3, "copy": 1}, "copy", "must be true or false (got 1)"),
    ],
)
def test_wrong_keywords(given, path, message):
    assert check(Net, given) == ({}, [(path, message)])


def test_all_keywords_at_once():
    assert len(check(Net, {"depth": "x", "copy": "x", "path": 1, "what": 1})[1]) == 4


def test_a_class_that_takes_any_keyword():
    assert check(Open, {"width": 2, "more": [1]}) == ({"width": 2, "more": [1]}, [])
    assert check(Open, {"width": "x"})[1] == [("width", "must be an integer (got 'x')")]


def test_what_cannot_be_resolved_checks_names_only():
    assert check(Unresolved, {"width": "x", "depth": 2}) == ({"width": "x", "depth": 2}, [])
    assert check(Unresolved, {"depth": "x"})[1] == [("depth", "must be an integer (got 'x')")]
    assert check(Unresolved, {"wdth": 1})[1] == [("wdth", "unknown key, did you mean 'width'?")]


def test_what_plsc_passes():
    assert check(Narrow, {})[1] == [
        ("name", "Narrow.__init__ must take 'embedding_size', which plsc passes to it")
    ]
    assert check(Narrow, {"seed": 3}, TrainDatasetCfg)[1] == [
        ("seed", "comes from Global.seed, set that (got 3)")
    ]
    assert check(Narrow, {"width": 3}, TrainDatasetCfg) == ({"width": 3}, [])


class Base:
    def __init__(self, size: tuple[int, int] = (8, 8), seed: int = 0):
        """seed is given by the run."""


class Derived(Base):
    def __init__(self, path: str, **options):
        super().__init__(**options)


class Last(Derived):
    def __init__(self, path: str, share: float = 0.5, **options):
        super().__init__(path, **options)


def test_options_are_the_arguments_of_the_base_class():
    assert check(Last, {"path": "x", "size": [4, 5], "share": 1}, TrainDatasetCfg) == (
        {"path": "x", "size": (4, 5), "share": 1.0},
        [],
    )
    _, problems = check(Last, {"path": "x", "sise": [4, 5]}, TrainDatasetCfg)
    assert problems == [("sise", "unknown key, did you mean 'size'?")]
    _, problems = check(Derived, {"path": "x", "size": 4}, TrainDatasetCfg)
    assert problems == [("size", "must be a list of 2 values (got 4)")]
    assert takes(Last, "seed") and not takes(Last, "steps")


def test_a_class_without_init_takes_nothing():
    class Plain:
        pass

    assert check(Plain, {"width": 1}, TrainDatasetCfg)[1] == [("width", "unknown key (one of name)")]
