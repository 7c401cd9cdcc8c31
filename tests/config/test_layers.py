"""Files and overrides that cannot be read, and the layers on their own."""

import os
from pathlib import Path

import numpy as np
import pytest

from plsc.config.layers import DEFAULT, Layers, Source, plain
from plsc.errors import MissingFileError, UserError


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def read(data, name="a.yaml"):
    Path(name).write_bytes(data if isinstance(data, bytes) else data.encode())
    layers = Layers()
    layers.read_file(name)
    return layers


def override(*texts):
    layers = Layers()
    for order, text in enumerate(texts):
        layers.read_override(text, order)
    return layers


def test_a_missing_file_names_its_nearest_neighbour():
    Path("configs").mkdir()
    Path("configs/default.yaml").write_text("")
    for path, message in {
        "configs/defualt.yaml": "configs/defualt.yaml: {}, did you mean 'configs/default.yaml'?",
        "nowhere/x.yaml": "nowhere/x.yaml: {}",
        ".": "default.yaml: {}",
    }.items():
        with pytest.raises(MissingFileError) as error:
            Layers().read_file(path)
        assert str(error.value) == message.format("no such config file")


def test_a_file_that_cannot_be_read():
    os.symlink("loop.yaml", "loop.yaml")
    with pytest.raises(UserError, match=r"^loop.yaml: cannot be read: "):
        Layers().read_file("loop.yaml")


def test_a_file_that_is_not_utf8():
    with pytest.raises(UserError, match=r"^a.yaml: is no UTF-8 text"):
        read(b"# fine\nGlobal: {output_dir: caf\xe9}")


@pytest.mark.parametrize(
    "text, line",
    [
        ("- Head", "a.yaml:1: a config must be a mapping of sections (got [Head])"),
        ("Head", "a.yaml:1: a config must be a mapping of sections (got 'Head')"),
        ("Head:\n\tmargin: 1", "a.yaml:2: a tab; YAML is indented with spaces"),
        (
            "a: b: c",
            (
                "a.yaml:1: a key that is indented otherwise than the keys around it, or a text with "
                "': ' that "
                "needs quotes"
            ),
        ),
    ],
)
def test_files_that_say_no_config(text, line):
    assert read(text).lines() == [line]


@pytest.mark.parametrize(
    "text, line",
    [
        ("", "-o : an override must be Section.key=value (it has no '=')"),
        ("Head", "-o Head: an override must be Section.key=value (it has no '=')"),
        ("=3", "-o =3: an override must be Section.key=value (the key is empty)"),
        ("Head.=3", "-o Head.=3: an override must be Section.key=value (the key is empty)"),
        ("A.b={c: 1, c: 2}", "-o A.b={c: 1, c: 2}: A.b.c: given twice (first on line 1)"),
        ("A.b=*x", "-o A.b=*x: A.b: not valid YAML: found undefined alias 'x'"),
    ],
)
def test_overrides_that_say_nothing(text, line):
    assert override(text).lines() == [line]


def test_put_replaces_what_stood_there():
    layers = override("A.b.c=1", "A.b={d: 2}", "A.e=x=y", "A.e.f=")
    assert layers.tree == {"A": {"b": {"d": 2}, "e": {"f": None}}}
    assert {path: source.order for path, source in layers.sources.items()} == {
        ("A",): 0,
        ("A", "b"): 1,
        ("A", "b", "d"): 1,
        ("A", "e"): 3,
        ("A", "e", "f"): 3,
    }


def test_the_source_of_what_was_not_written_is_the_nearest_above():
    layers = read("A:\n  b:\n    c: 1")
    assert layers.source(("A", "b", "x", "y")) == Source(0, 2, "a.yaml:2")
    assert layers.source(("Z",)) == DEFAULT
    assert (layers.get(("A", "b", "c")), layers.get(("A", "b", "c", "d"))) == (1, None)


def test_problems_come_once_and_in_order():
    layers = read("a: 1\nb: 2\na: 3\nb: 4\na: 5")
    layers.read_override("x", 0)
    assert [line.split(": ")[0] for line in layers.lines()] == ["a.yaml:3", "a.yaml:4", "a.yaml:5", "-o x"]


def test_plain():
    value = {"a": (1, np.int64(2), np.float32(0.5)), "b": Path("x") / "y", "c": np.bool_(True)}
    assert plain(value) == {"a": [1, 2, 0.5], "b": os.path.join("x", "y"), "c": True}
