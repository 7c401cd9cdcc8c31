import sys

import pytest

from plsc.backbones.config import BACKBONES
from plsc.data.config import DATASETS
from plsc.errors import UserError
from plsc.utils.registry import Registry, did_you_mean
from tests.helpers.refusals import refusal

CHOICES = "(one of Ordered, or your own as package.module:Class)"


@pytest.fixture
def colours():
    return Registry("colour", {"Ordered": "collections:OrderedDict"}, ("numbers:Rational",))


def test_builtin_names_are_imported_when_asked_for(colours, monkeypatch, tmp_path):
    (tmp_path / "plsc_lazy_net.py").write_text(
        "class Net:\n    def __init__(self, width=1):\n        self.width = width\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry("backbone", {"Net": "plsc_lazy_net:Net"}, ())
    assert "plsc_lazy_net" not in sys.modules
    assert registry.get("Net")(width=3).width == 3
    assert sys.modules.pop("plsc_lazy_net")


def test_a_class_of_another_kind_is_refused_before_it_is_called(monkeypatch):
    """A config that names any other class must not get it called."""
    monkeypatch.delitem(sys.modules, "paddle", raising=False)  # it must not be imported for that, either
    monkeypatch.delitem(sys.modules, "paddle.nn", raising=False)
    with pytest.raises(
        UserError, match=r"^backbone 'subprocess:Popen': Popen must derive from paddle.nn.Layer$"
    ):
        BACKBONES.get("subprocess:Popen")
    assert "paddle" not in sys.modules
    for name in ("subprocess:Popen", "builtins:dict", "fractions:Fraction", "plsc.utils.registry:Registry"):
        with pytest.raises(
            UserError, match=rf"^dataset '{name}': \w+ must derive from plsc.data.dataset.Dataset or"
        ):
            DATASETS.get(name)


def test_a_class_that_lacks_methods_is_refused():
    with pytest.raises(UserError, match="Dataset must define sample$"):
        DATASETS.get("plsc.data.dataset:Dataset")


@pytest.mark.parametrize(
    "name, message",
    [
        (
            "ordred",
            f"unknown colour 'ordred', did you mean 'Ordered'? {CHOICES}",
        ),
        ("", f"unknown colour '' {CHOICES}"),
        (
            "no_such_module:X",
            (
                "colour 'no_such_module:X': cannot import no_such_module: ModuleNotFoundError: No module "
                "named 'no_such_module'; put it beside the config, or its folder on PYTHONPATH, or install it"
            ),
        ),
        (
            "fractions:Fractoin",
            "colour 'fractions:Fractoin': module fractions has no class Fractoin, did you mean 'Fraction'?",
        ),
        (
            "math:sqrt",
            "colour 'math:sqrt': sqrt is a function; name a class, which may call it (docs/extend.md)",
        ),
        ("math:pi", "colour 'math:pi': module math has no class pi"),
        ("broken:X", "colour 'broken:X': cannot import broken: KeyError: 1; --debug shows where"),
    ],
)
def test_names_that_lead_nowhere(colours, name, message, tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("{}[1]")
    monkeypatch.syspath_prepend(tmp_path)
    assert refusal(colours.get, name) == message


def test_did_you_mean_ignores_case_and_keeps_silent_when_nothing_is_near():
    assert did_you_mean("ARCFACE", ["softmax", "arcface"]) == ", did you mean 'arcface'?"
    assert did_you_mean("x", ["softmax"]) == ""
