"""Guards: no test leaves its mark on the next one, nor on the repository. And a writer of config files."""

import os
import sys
from pathlib import Path

import pytest

from plsc import log
from plsc.entry import RUN_FILES

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = ("PADDLE_", "OMP_", "MKL_", "GLOG_")  # of the environment, which launches hand on
LEFTOVERS = {"output", "log", "launch.yaml", *RUN_FILES}  # of a run with relative paths


def settings():
    return {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)}


USERS = settings()  # before any test module has imported Paddle, which sets OMP_NUM_THREADS=1


def restore():
    for name in settings().keys() - USERS.keys():
        del os.environ[name]
    os.environ.update(USERS)


@pytest.fixture(scope="session", autouse=True)
def nothing_in_the_repository():
    """Runs that tests start must name their output folder. Before it: the environment as the user has it."""
    restore()
    before = set(os.listdir(ROOT))
    yield
    found = LEFTOVERS & (set(os.listdir(ROOT)) - before)
    assert not found, f"a test wrote {sorted(found)} into {ROOT}"


@pytest.fixture(autouse=True)
def nothing_for_the_next_test():
    yield
    restore()
    log.setup()  # closes a run's train.log
    pyplot = sys.modules.get("matplotlib.pyplot")
    figures = pyplot.get_fignums() if pyplot else []
    if figures:
        pyplot.close("all")
    assert not figures, f"the test left {len(figures)} figures open"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a config file into the working directory and returns its name."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="a.yaml"):
        data = text if isinstance(text, bytes) else text.encode()
        Path(name).write_bytes(data)
        return name

    return write
