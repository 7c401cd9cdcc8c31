"""The keyword arguments of classes, checked by their signatures."""

from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest

from plsc.data.config import TrainDatasetCfg
from plsc.utils.section import formatted


def test_formatted_is_short():
    assert formatted(None) == "null" and formatted(True) == "true" and formatted("x") == "'x'"
    assert formatted([1] * 100) == "[" + "1, " * 18 + "1,..."
    assert len(formatted("x" * 100)) == 60


class Net:
    def __init__(
        self,
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
    def __init__(self, width: "Missing" = 1, depth: int = 1):  # noqa: F821
        pass


@pytest.fixture
def check(monkeypatch):
    """A function that reads the keywords of a class as `DataLoader.Train.dataset` does."""

    def check(cls, given):
        monkeypatch.setattr(TrainDatasetCfg, "registry", SimpleNamespace(get=lambda name: cls))
        values, mistakes = TrainDatasetCfg.read_keywords({"name": "Own", **given})
        return values, [(".".join(map(str, wrong["loc"])), wrong["type"].message()) for wrong in mistakes]

    return check


def test_values_come_as_annotated(check):
    given = {"depth": 3, "widths": [1, 2], "path": "x", "copy": True, "anything": {"a": [1]}, "rates": [1]}
    values, problems = check(Net, {**given})
    assert problems == []
    assert values == {**given, "widths": (1, 2), "path": Path("x"), "rates": [1.0]}


@pytest.mark.parametrize(
    "given, path, message",
    [
        ({}, "depth", "is required"),
        ({"depth": 3.0}, "depth", "must be a valid integer (got 3.0)"),
        ({"depth": 3, "widht": 1}, "widht", "unknown key, did you mean 'widths'?"),
        ({"depth": 3, "margin": 1}, "margin", "unknown key, did you mean 'Head.margin'?"),
        ({"depth": 3, "widths": [8, "x"]}, "widths.1", "must be a valid integer (got 'x')"),
        ({"depth": 3, "rates": [float("nan")]}, "rates.0", "must be a finite number (got NaN)"),
        (
            {"depth": 3, "norm": "bathc"},
            "norm",
            "must be 'batch' or 'layer' (got 'bathc'), did you mean 'batch'?",
        ),
    ],
)
def test_wrong_keywords(check, given, path, message):
    assert check(Net, given) == ({}, [(path, message)])


def test_all_keywords_at_once(check):
    assert len(check(Net, {"depth": "x", "copy": "x", "path": 1, "what": 1})[1]) == 4


def test_a_class_that_takes_any_keyword(check):
    assert check(Open, {"width": 2, "more": [1]}) == ({"width": 2, "more": [1]}, [])
    assert check(Open, {"width": "x"})[1] == [("width", "must be a valid integer (got 'x')")]


def test_what_cannot_be_resolved_checks_names_only(check):
    assert check(Unresolved, {"width": "x", "depth": 2}) == ({"width": "x", "depth": 2}, [])
    assert check(Unresolved, {"wdth": 1})[1] == [("wdth", "unknown key, did you mean 'width'?")]


def test_what_plsc_passes_is_no_key(check, monkeypatch):
    assert check(Base, {"seed": 3}) == ({"seed": 3}, [])
    monkeypatch.setattr(TrainDatasetCfg, "supplied", ("seed",))
    assert check(Base, {"seed": 3})[1] == [("seed", "unknown key, did you mean 'Global.seed'?")]


class Base:
    def __init__(self, size: tuple[int, int] = (8, 8), seed: int = 0):
        """seed is given by the run."""


class Derived(Base):
    def __init__(self, path: str, **options):
        super().__init__(**options)


class Last(Derived):
    def __init__(self, path: str, share: float = 0.5, **options):
        super().__init__(path, **options)


def test_options_are_the_arguments_of_the_base_class(check):
    assert check(Last, {"path": "x", "size": [4, 5], "share": 1}) == (
        {"path": "x", "size": (4, 5), "share": 1.0},
        [],
    )
    _, problems = check(Last, {"path": "x", "sise": [4, 5]})
    assert problems == [("sise", "unknown key, did you mean 'size'?")]
    _, problems = check(Derived, {"path": "x", "size": 4})
    assert problems == [("size", "must be a list (got 4)")]
