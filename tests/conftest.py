"""Guards: no test leaves its mark on the next one, nor on the repository. And a writer of config files."""

import os
import signal
import sys
from pathlib import Path

import pytest

from plsc.distributed import environment, launcher
from plsc.evaluation import report
from plsc.utils.logging import setup_logging
from tests.helpers.launch import ROOT, Forking
from tests.helpers.warm import do_not_sync

# Remove settings from the environment, since launches pass it on. A config that names a device makes the
# settings for its kind.
SETTINGS = ("PADDLE_", "OMP_", "MKL_", "ONEDNN_", "GLOG_", "FLAGS_", "BKCL_", "CUSTOM_DEVICE_BLACK")
CACHES = {"__pycache__", ".pytest_cache", ".ruff_cache", "build"}


def settings():
    return {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)}


# Equal bits are promised for equal threads and one BLAS code path, and the first matrix product fixes both.
# So all test processes have one thread and the code path that plsc would choose, from before Paddle is
# imported.
os.environ["OMP_NUM_THREADS"] = "1"
environment.prepare()
# Avoid ports that the system gives to connections, one of which may come before a test opens its own.
os.environ["PORT_RANGE"] = "10000:32000"
USERS = settings()
do_not_sync()
environment._environment_at_start = lambda: USERS  # as if pytest had been started so

# Ignored where pytest runs in a shell's background, and plsc leaves an ignored signal ignored: the tests send
# it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Begin with what takes minutes, so that at the end of the run no process is left alone with it."""
    items.sort(key=lambda item: not {"distributed", "standin"} & {*item.path.parts})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Escape what tests print and log: xdist ends the whole run at a character that is not UTF-8."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report


def restore():
    for name in settings().keys() - USERS.keys():
        del os.environ[name]
    os.environ.update(USERS)


@pytest.fixture(scope="session", autouse=True)
def environment_of_users():
    """Begin with the environment as the user has it."""
    restore()


@pytest.fixture(autouse=True)
def nothing_in_the_repository():
    """Runs that tests start must name their output folder."""
    before = set(os.listdir(ROOT))
    yield
    found = set(os.listdir(ROOT)) - before - CACHES
    assert not found, f"a test wrote {sorted(found)} into {ROOT}"


@pytest.fixture(scope="session", autouse=True)
def reports_without_pictures():
    """Drawing takes ten times as long as a tiny run. Tests that look at pictures ask for them with
    `tests.helpers.pictures.drawn`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "draw", lambda *_: [])
        yield


def signals():
    """Whatever programs that a test starts inherit: how this process takes signals, and which it blocks."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    return handlers, signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.fixture(autouse=True)
def nothing_for_the_next_test():
    before = signals()
    yield
    restore()
    assert signals() == before, "the test left signals in another way than it found them"
    setup_logging()  # closes a run's train.log
    paddle = sys.modules.get("paddle")
    if paddle:
        paddle.base.core.set_num_threads(1)
    pyplot = sys.modules.get("matplotlib.pyplot")
    figures = pyplot.get_fignums() if pyplot else []
    if figures:
        pyplot.close("all")
    assert not figures, f"the test left {len(figures)} figures open"


@pytest.fixture
def without_views():
    """Paddle makes copies instead of strided views, as it does on NPUs, XPUs and MLUs."""
    import paddle

    flag = "FLAGS_use_stride_kernel"
    before = paddle.get_flags(flag)
    paddle.set_flags({flag: False})
    yield
    paddle.set_flags(before)


@pytest.fixture
def launches_are_forked(tmp_path, monkeypatch):
    """What plsc itself launches is forked like the tests' own launches, in the test's own folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "subprocess", Forking)


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a config file into the working directory and returns its name."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="a.yaml"):
        data = text if isinstance(text, bytes) else text.encode()
        Path(name).write_bytes(data)
        return name

    return write
