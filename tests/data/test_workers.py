import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from plsc.data.loader import Loader
from plsc.data.synthetic import Synthetic
from plsc.errors import MissingFileError, UserError
from tests.helpers.launch import start_python
from tests.helpers.refusals import refusal


class Trouble(Synthetic):
    """Does as `act` says when sample 5 is asked for. Defined here, so that workers can import it."""

    def __init__(self, act):
        super().__init__(num_classes=10, images_per_class=2)
        self.act = act
        self.calls = np.zeros(1, np.int64)

    def sample(self, index, epoch):
        self.calls += 1  # a data set may write to its own arrays
        assert "paddle" not in sys.modules
        if index == 5:
            if self.act == "raise":
                return {}["missing key"]
            if self.act == "missing file":
                raise MissingFileError("five.jpg: no such image")
            if self.act == "exit":
                os._exit(3)
            if self.act == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.act == "shape":
                return np.zeros((32, 32, 1), np.float32)
        return super().sample(index, epoch)


def run(act):
    return list(Loader(Trouble(act), 4, 0, 1, seed=0, num_workers=2).from_step(0))


def test_workers_import_no_paddle():
    assert len(run("nothing")) == 5


def test_an_error_in_a_worker_keeps_its_cause():
    expected = r"^Trouble.sample\(5\) \(synthetic class 2, sample 5\): KeyError in sample, .*: 'missing key'$"
    with pytest.raises(UserError, match=expected) as raised:
        run("raise")
    assert 'return {}["missing key"]' in str(raised.value.__cause__)


def test_the_users_errors_pass_unchanged():
    assert refusal(run, "missing file", kind=MissingFileError) == "five.jpg: no such image"
    assert ", got float32 [32, 32, 1]" in refusal(run, "shape")


@pytest.mark.parametrize(
    ("act", "end"), [("exit", "ended with code 3"), ("kill", r"was killed \(signal 9\)")]
)
def test_a_worker_that_ends_is_reported(act, end):
    with pytest.raises(RuntimeError, match=f"^a process that makes batches {end}; if memory ran out, lower"):
        run(act)


def test_a_data_set_that_no_process_can_have_is_refused():
    data = Synthetic()
    data.transform = lambda image: image
    said = refusal(next, Loader(data, 4, 0, 1, seed=0, num_workers=1).from_step(0))
    assert said.startswith("DataLoader.Train.num_workers: data set Synthetic cannot be passed to processes: ")
    assert said.endswith("<lambda>'; set it to 0")


class Unwilling(Synthetic):
    """It travels to a process, but cannot be made there."""

    def __reduce__(self):
        return (_not_here, ())


def _not_here():
    raise FileNotFoundError("five.npy")


def test_a_data_set_that_cannot_be_made_in_a_process_is_one_line():
    said = refusal(next, Loader(Unwilling(), 4, 0, 1, seed=0, num_workers=1).from_step(0))
    start = (
        "DataLoader.Train.num_workers: a process cannot read the data set: FileNotFoundError in _not_here, "
    )
    assert said.startswith(start) and "five.npy; define its class in a module that can be imported" in said


def test_workers_leave_signals_to_the_parent_and_end_with_the_loader():
    others = children_of(os.getpid())
    loader = Loader(Synthetic(), 4, 0, 1, seed=0, num_workers=2)
    assert len(list(loader.from_step(0))) == loader.steps_per_epoch
    workers = children_of(os.getpid()) - others
    assert len(workers) == 2
    for pid in workers:
        for signalled in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, signalled)
    assert len(list(loader.from_step(0))) == loader.steps_per_epoch
    del loader
    assert_end(workers)


PARENT = """
from plsc.data.loader import Loader
from plsc.data.synthetic import Synthetic
loader = Loader(Synthetic(50, 4), 4, 0, 1, seed=0, num_workers=2)
batches = loader.from_step(0)
next(batches)
print("started", flush=True)
input()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, None])
def test_no_worker_outlives_the_parent(how):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    parent = start_python("-c", PARENT, **pipes)
    assert parent.stdout.readline() == "started\n"
    workers = children_of(parent.pid)
    assert len(workers) == 2
    if how is None:
        parent.communicate("\n")
        assert parent.returncode == 0
    else:
        parent.send_signal(how)
        parent.communicate()
    assert_end(workers)


def assert_end(workers):
    deadline = time.monotonic() + 60
    while workers & running().keys() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not workers & running().keys()


def children_of(parent):
    return {pid for pid, parent_of_it in running().items() if parent_of_it == parent}


def running():
    """Return each process's parent, without processes that have ended and for which nobody has waited yet."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(folder.name)] = int(parent)
    return parents
