"""Files and overrides that cannot be read, and the layers on their own."""

import os
from pathlib import Path

import pytest

from plsc.config.merge import MergedConfig
from plsc.errors import MissingFileError, UserError
from tests.helpers.refusals import refusal


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def read(data, name="a.yaml"):
    Path(name).write_bytes(data if isinstance(data, bytes) else data.encode())
    merged = MergedConfig()
    merged.read_file(name)
    return merged


def override(*texts):
    merged = MergedConfig()
    for order, text in enumerate(texts):
        merged.read_override(text, order)
    return merged


def test_a_missing_file_names_its_nearest_neighbour():
    Path("configs").mkdir()
    Path("configs/default.yaml").write_text("")
    for path, message in {
        "configs/defualt.yaml": "configs/defualt.yaml: {}, did you mean 'configs/default.yaml'?",
        "nowhere/x.yaml": "nowhere/x.yaml: {}",
        ".": "default.yaml: {}, and . is not a run's folder, since it has no config.yaml",
    }.items():
        line = message.format("no such config file")
        assert refusal(MergedConfig().read_file, path, kind=MissingFileError) == line


def test_a_file_that_cannot_be_read():
    with pytest.raises(UserError, match=r"^a.yaml: is not UTF-8 text"):
        read(b"# fine\nGlobal: {output_dir: caf\xe9}")
    os.mkfifo("pipe.yaml")  # ranks could not read it again
    with pytest.raises(UserError, match=r"^pipe.yaml: is not a regular file"):
        MergedConfig().read_file("pipe.yaml")


@pytest.mark.parametrize(
    "text, line",
    [
        ("- Head", 'a.yaml:1: a config must be a mapping of sections (got ["Head"])'),
        ("Head", "a.yaml:1: a config must be a mapping of sections (got 'Head')"),
        ("Head:\n\tmargin: 1", "a.yaml:2: a tab; YAML is indented with spaces"),
    ],
)
def test_files_that_say_no_config(text, line):
    assert read(text).lines() == line


@pytest.mark.parametrize(
    "text, line",
    [
        ("Head", "-o Head: an override must be Section.key=value (it has no '=')"),
        ("=3", "-o =3: an override must be Section.key=value (the key is empty)"),
        ("A.b={c: 1, c: 2}", "-o A.b={c: 1, c: 2}: A.b.c: given twice (first on line 1)"),
        ("A.b=*x", "-o A.b=*x: A.b: not valid YAML: found undefined alias 'x'"),
    ],
)
def test_overrides_that_say_nothing(text, line):
    assert override(text).lines() == line
