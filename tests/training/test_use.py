"""What the report says of the run."""

from pathlib import Path

import pytest

import plsc
from plsc.training.inference import _command

MAIN = str(Path(plsc.__file__).with_name("__main__.py"))


@pytest.mark.parametrize(
    "argv, command",
    [
        (["/venv/bin/plsc", "train", "-c", "a b.yaml"], "plsc train -c 'a b.yaml'"),
        ([MAIN, "train", "-c", "configs/"], "plsc train -c configs/"),
        ([__file__, "-c", "configs/"], f"python {__file__} -c configs/"),
        (["-c"], "in Python"),
        ([""], "in Python"),
    ],
)
def test_the_command_of_the_report_can_be_typed(argv, command):
    assert _command(argv) == command
