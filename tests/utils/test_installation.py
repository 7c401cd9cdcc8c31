"""Two programs in the folder of one: refused in one line, in Python and on the command line."""

import pytest

import plsc
from plsc import cli
from plsc.errors import UserError
from plsc.utils import installation


@pytest.fixture
def mixed(tmp_path, monkeypatch):
    """A folder of plsc that has a file of PaddlePaddle's program."""
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "engine.py").touch()
    monkeypatch.setattr(installation.refuse_mixed_files, "__defaults__", (tmp_path,))
    return tmp_path


def test_this_folder_is_ours_alone():
    installation.refuse_mixed_files()
    assert plsc.Entry


def test_an_import_is_refused_with_the_remedy(mixed):
    with pytest.raises(UserError, match=rf"^{mixed}: two programs .*pip uninstall -y plsc plsc-sharded"):
        _ = plsc.Entry


def test_a_command_is_refused_in_one_line(mixed, capsys):
    assert cli.main(["doctor", "faces"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ERROR {mixed}: two programs")
