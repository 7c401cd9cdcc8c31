import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from plsc.data.batch import SampleError
from plsc.data.loader import Loader
from plsc.data.synthetic import Synthetic
from plsc.data.workers import WorkerDied, WorkerTraceback
from plsc.errors import MissingFileError, UserError
from tests.helpers.launch import ROOT, run_python, start_python


class Trouble(Synthetic):
    """Does as `act` says when sample 5 is asked for. Defined here, so that workers can import it."""

    def __init__(self, act):
        super().__init__(num_classes=10, images_per_class=2)
        self.act = act
        self.calls = np.zeros(1, np.int64)

    def sample(self, index, epoch):
        self.calls += 1  # a data set may write to its own arrays
        if self.act == "paddle":
            assert "paddle" not in sys.modules
        if index == 5:
            if self.act == "raise":
                return {}["missing key"]
            if self.act == "missing file":
                raise MissingFileError("five.jpg: no such image")
            if self.act == "own error":
                raise OwnError("line", 7)
            if self.act == "exit":
                os._exit(3)
            if self.act == "shape":
                return np.zeros((32, 32, 1), np.float32)
        return super().sample(index, epoch)


class OwnError(UserError):
    def __init__(self, what, number):  # unpickling would call it with one argument
        super().__init__(f"{what} {number} is bad")


def run(act, num_workers=2):
    loader = Loader(Trouble(act), 4, 0, 1, seed=0, num_workers=num_workers)
    return loader, list(loader.epoch(0))


def test_workers_import_no_paddle():
    assert len(run("paddle")[1]) == 5


def test_an_error_in_a_worker_keeps_its_cause():
    with pytest.raises(
        SampleError, match=r"^sample 5 \(synthetic class 2, sample 5\): KeyError: 'missing key'$"
    ) as raised:
        run("raise")
    assert isinstance(raised.value.__cause__, WorkerTraceback)
    assert 'return {}["missing key"]' in str(raised.value.__cause__)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_users_errors_pass_unchanged(num_workers):
    with pytest.raises(MissingFileError, match="^five.jpg: no such image$"):
        run("missing file", num_workers)
    with pytest.raises(UserError, match="^line 7 is bad$"):
        run("own error", num_workers)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_image_of_the_wrong_kind_is_refused(num_workers):
    message = r"must be an array uint8 \[1, 32, 32\] .*, got float32 \[32, 32, 1\]"
    with pytest.raises(UserError, match=message):
        run("shape", num_workers)


def test_a_worker_that_ends_is_named():
    with pytest.raises(
        WorkerDied, match=r"^data worker \d \(pid \d+\) ended with exit code 3; its own message"
    ):
        run("exit")


def test_a_killed_worker_is_named_and_the_next_epoch_starts_anew():
    loader = Loader(Synthetic(50, 4), 4, 0, 1, seed=0, num_workers=2)
    batches = loader.epoch(0)
    next(batches)
    victim = loader._workers._processes[1]
    os.kill(victim.pid, signal.SIGKILL)
    with pytest.raises(
        WorkerDied, match=rf"^data worker 1 \(pid {victim.pid}\) was killed by SIGKILL; if the machine"
    ):
        list(batches)
    assert len(list(loader.epoch(0))) == loader.steps_per_epoch


def test_close_and_loss_of_the_loader_end_the_workers():
    loader, _ = run("nothing")
    processes = loader._workers._processes
    assert all(process.poll() is None for process in processes)
    loader.close()
    assert all(process.poll() is not None for process in processes)
    loader, _ = run("nothing")
    processes = loader._workers._processes
    del loader
    assert all(process.poll() is not None for process in processes)


PARENT = """
from plsc.data.loader import Loader
from plsc.data.synthetic import Synthetic
loader = Loader(Synthetic(50, 4), 4, 0, 1, seed=0, num_workers=2)
batches = loader.epoch(0)
next(batches)
print(*[process.pid for process in loader._workers._processes], flush=True)
input()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, None])
def test_no_worker_outlives_the_parent(how):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    parent = start_python("-c", PARENT, **pipes)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2 and all(alive(pid) for pid in pids)
    if how is None:
        parent.communicate("\n")
        assert parent.returncode == 0
    else:
        parent.send_signal(how)
        parent.communicate()
    deadline = time.monotonic() + 60
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(alive(pid) for pid in pids)


def alive(pid):
    """Whether the process runs; one that has ended but was not yet waited for by its new parent does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_memory_that_cannot_be_had_is_said_in_one_line():
    """A limit on the size of files holds for the batches' memory too; in a process of its own, because it
    lasts."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))\n"
        "from plsc.data.loader import Loader\n"
        "from plsc.data.synthetic import Synthetic\n"
        "from plsc.errors import UserError\n"
        "try:\n    next(Loader(Synthetic(50, 4), 100, 0, 1, seed=0, num_workers=2).epoch(0))\n"
        "except UserError as error:\n    print(type(error).__name__, error)"
    )
    done = run_python("-c", code, cwd=ROOT)
    assert done.stderr == "" and done.stdout == (
        "UserError cannot start 2 data workers with 0.4 MB for their batches: File too large; lower "
        "DataLoader.Train.num_workers or batch_size, or raise the limit (ulimit -a shows it)\n"
    )


def test_data_sets_that_cannot_cross_are_refused():
    here = type("InScript", (Synthetic,), {"__module__": "__main__"})
    with pytest.raises(
        UserError, match="^data set InScript is defined in the script itself, .*or use num_workers=0$"
    ):
        next(Loader(here(), 4, 0, 1, seed=0, num_workers=1).epoch(0))
    data = Synthetic()
    data.transform = lambda image: image
    with pytest.raises(
        UserError, match=r"^data set Synthetic cannot go to workers \(.*lambda.*\); use num_workers=0$"
    ):
        next(Loader(data, 4, 0, 1, seed=0, num_workers=1).epoch(0))
