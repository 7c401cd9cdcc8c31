import sys

import pytest

from plsc.errors import UserError
from plsc.utils.registry import BACKBONES, DATASETS, Registry, did_you_mean

CHOICES = "(one of Lost, Ordered, or your own as package.module:Class)"


@pytest.fixture
def colours():
    return Registry(
        "colour", {"Ordered": "collections:OrderedDict", "Lost": "no_such_module:Lost"}, ("numbers:Rational",)
    )


def test_register_plain_called_and_named(colours):
    @colours.register
    class Red:
        pass

    @colours.register()
    class Green:
        pass

    @colours.register(name="Azure")
    class Blue:
        pass

    assert colours.names() == ["Azure", "Green", "Lost", "Ordered", "Red"]
    assert [colours.get(name) for name in ("Red", "Green", "Azure")] == [Red, Green, Blue]


def test_a_name_taken_twice(colours):
    colours.register(type("Red", (), {"__module__": "one"}))
    with pytest.raises(
        UserError, match=r"^colour 'Red' is already one.Red; register two.Red by another name$"
    ):
        colours.register(type("Red", (), {"__module__": "two"}))
    with pytest.raises(UserError, match=r"^colour 'Ordered' is built in; register one.X by another name$"):
        colours.register(type("X", (), {"__module__": "one"}), name="Ordered")


def test_the_same_class_defined_again_replaces_the_first(colours):
    first, again = (type("Red", (), {"__module__": "__main__"}) for _ in range(2))
    colours.register(first)
    colours.register(again)
    assert colours.get("Red") is again


def test_builtin_names_are_imported_when_asked_for(colours, monkeypatch, tmp_path):
    (tmp_path / "plsc_lazy_net.py").write_text(
        "class Net:\n    def __init__(self, width=1):\n        self.width = width\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry("backbone", {"Net": "plsc_lazy_net:Net"}, ())
    assert "plsc_lazy_net" not in sys.modules
    assert registry.build("Net", width=3).width == 3
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


@pytest.mark.parametrize("name", ["fractions:Fraction", "fractions.Fraction"])
def test_import_paths(colours, name):
    assert str(colours.build(name, numerator=1, denominator=2)) == "1/2"


@pytest.mark.parametrize(
    "name, message",
    [
        (
            "ordred",
            f"unknown colour 'ordred', did you mean 'Ordered'? {CHOICES}",
        ),
        ("Zzz", f"unknown colour 'Zzz' {CHOICES}"),
        ("", f"unknown colour '' {CHOICES}"),
        (
            "fractions:",
            f"unknown colour 'fractions:' {CHOICES}",
        ),
        ("Lost", "colour 'Lost': cannot import no_such_module: No module named 'no_such_module'"),
        (
            "no_such_module:X",
            (
                "colour 'no_such_module:X': cannot import no_such_module: No module named 'no_such_module'; "
                "put it beside the config, or its folder on PYTHONPATH"
            ),
        ),
        (
            "fractions:Fractoin",
            "colour 'fractions:Fractoin': module fractions has no class Fractoin, did you mean 'Fraction'?",
        ),
        ("math:pi", "colour 'math:pi': module math has something that is no class: pi"),
    ],
)
def test_names_that_lead_nowhere(colours, name, message):
    with pytest.raises(UserError) as error:
        colours.get(name)
    assert str(error.value) == message


def test_did_you_mean_ignores_case_and_keeps_silent_when_nothing_is_near():
    assert did_you_mean("ARCFACE", ["softmax", "arcface"]) == ", did you mean 'arcface'?"
    assert did_you_mean("x", ["softmax"]) == ""


def test_builtin_names():
    assert set(BACKBONES.names()) == {
        *(f"IResNet{depth}" for depth in (18, 34, 50, 100, 200)),
        *(f"ResNet{depth}" for depth in (50, 100, 101, 152)),
        *("FaceViT_tiny", "FaceViT_small", "FaceViT_base"),
        *("LeNet", "MobileFaceNet", "SmallResNet"),
    }
    assert DATASETS.names() == [
        *(
            "BinPairs",
            "GalleryProbe",
            "GlyphPairs",
            "Glyphs",
            "IdxImages",
            "IjbPairs",
            "ImageFolder",
        ),
        *("ImageList", "ImagePairs", "PairList", "RecImages", "Synthetic"),
    ]
