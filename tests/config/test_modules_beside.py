"""A config can name classes in modules that are beside it or in the current folder. Other folders stay out of
Python's path."""

import sys

import pytest

from plsc.config import ConfigError, load

NET = """from paddle import nn
class Net(nn.Layer):
    def __init__(self, embedding_size: int, width: int = 1): ...
"""


@pytest.fixture(autouse=True)
def path(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    return sys.path


@pytest.mark.parametrize("file", ["plsc_beside.py", "plsc_beside/nets.py"])
def test_a_module_beside_the_config_is_found(tmp_path, monkeypatch, file):
    (tmp_path / "run" / file).parent.mkdir(parents=True)
    (tmp_path / "run" / file).write_text(NET)
    module = file.removesuffix(".py").replace("/", ".")
    (tmp_path / "run" / "a.yaml").write_text(f'Model: {{name: "{module}:Net", width: 3}}\n')
    monkeypatch.chdir(tmp_path)
    assert load("run/a.yaml").Model.model_extra == {"width": 3}
    assert sys.path[-1] == str(tmp_path / "run")
    for name in [name for name in sys.modules if name.startswith("plsc_beside")]:
        del sys.modules[name]


def test_a_run_finds_the_module_in_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "plsc_here.py").write_text(NET)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text('Model: {name: "plsc_here:Net"}\n')
    monkeypatch.chdir(tmp_path)
    assert load("run").Model.name == "plsc_here:Net"
    del sys.modules["plsc_here"]


def test_a_module_that_is_nowhere_is_named_with_the_remedy(tmp_path, path):
    (tmp_path / "a.yaml").write_text('Model: {name: "plsc_nowhere:Net"}\n')
    before = [*path]
    with pytest.raises(
        ConfigError, match="a.yaml:1: Model.name: .*put it beside the config, or its folder on PYTHONPATH"
    ):
        load(tmp_path / "a.yaml")
    assert sys.path == before
