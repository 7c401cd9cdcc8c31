"""Real launches that are killed, stopped and started again: what is left must equal, bit for bit, a run that was not."""

import os
import re
import signal
import subprocess
import sys

import pytest

from plsc.supervisor import newest_step
from tests.fake_launch import gone
from tests.launch import ROOT, launch, run_python
from tests.training import TINY, assert_same_arrays, checkpoint, rows, steps

TRAIN, HALF = ROOT / "tools/train.py", "DataLoader.Train.batch_size=6"


def overrides(folder, *plan):
    net = ["Model.name=tests.training:FaultyNet", f"Model.plan={list(plan)}", f"Model.marks={folder}"]
    return ["-c", TINY, "-o", HALF, "Global.output_dir=out", *net]


def supervised(folder, *plan, options=(), more=()):
    """A finished plsc-run on two ranks: exit code, its own lines, its process."""
    command = [
        ROOT / "tools/run.py",
        "--nproc_per_node",
        "2",
        *options,
        TRAIN,
        *overrides(folder, *plan),
        *more,
    ]
    process = subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    _, said = process.communicate(timeout=400)
    said = [re.sub(r"^[-\d]+ [:\d]+ ", "", line) for line in said.splitlines()]
    return process.returncode, [line for line in said if re.match("INFO|WARNING|ERROR", line)], process.pid


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nothing happens to, under the plain launcher."""
    folder = tmp_path_factory.mktemp("whole")
    launch(TRAIN, 2, folder, *overrides(folder))
    return folder / "out"


def assert_equal_runs(output, whole):
    """Every row once, the loss of every step to the bit, weights and momentum of backbone and head to the byte."""
    found, expected = rows(output), rows(whole)
    assert steps(found) == list(range(1, 13))
    assert [row["loss"].hex() for row in found] == [row["loss"].hex() for row in expected]
    assert found == expected and rows(output, evaluations=True) == rows(whole, evaluations=True)
    assert_same_arrays(checkpoint(output), checkpoint(whole))


@pytest.mark.slow
def test_a_kill_of_each_rank_changes_nothing(whole, tmp_path):
    code, said, pid = supervised(tmp_path, "0:6:SIGKILL", "1:3:SIGKILL")
    assert code == 0 and gone(pid, 0)
    killed = [
        re.match(r"WARNING rank (\d) was killed \(signal 9\) at step \d+; restart", line)[1] for line in said
    ]
    assert sorted(killed) == ["0", "1"]
    assert_equal_runs(tmp_path / "out", whole)


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["0:6:supervisor:SIGTERM", "1:5:SIGTERM", "1:7:supervisor:SIGINT"])
def test_a_stop_saves_the_step_and_the_same_command_goes_on(whole, tmp_path, plan):
    code, said, pid = supervised(tmp_path, plan)
    step = newest_step(tmp_path / "out")
    name = plan.rpartition(":")[2]
    assert code == 0 and gone(pid, 0) and 0 < step < 12
    assert said == [f"INFO stopped on {name} at step {step}; resume with the same command"]
    assert steps(rows(tmp_path / "out")) == list(range(1, step + 1))
    assert f"stopped on {name} at step {step}" in (tmp_path / "out/train.log").read_text()
    code, said, _ = supervised(tmp_path, plan)
    assert (code, said) == (0, [f"INFO resuming the unfinished run from step {step}"])
    assert_equal_runs(tmp_path / "out", whole)


@pytest.mark.slow
def test_a_killed_launcher_leaves_no_process_and_loses_nothing(whole, tmp_path):
    code, said, pid = supervised(tmp_path, "1:7:launcher:SIGKILL")
    assert code == 0 and gone(pid, 0)
    assert len(said) == 1 and said[0].startswith(
        "WARNING the launcher was killed (signal 9); restart 1 from "
    )
    assert_equal_runs(tmp_path / "out", whole)


def test_a_killed_supervisor_leaves_no_process(tmp_path):
    code, _, pid = supervised(tmp_path, "1:5:supervisor:SIGKILL")
    assert code == -signal.SIGKILL and gone(pid, 1)


def test_one_process_stops_on_a_signal_and_resumes(tmp_path):
    command = overrides(tmp_path, "0:7:SIGTERM")
    said = run_python(TRAIN, *command, cwd=tmp_path).stdout.splitlines()
    (last,) = re.findall(
        r"stopped on SIGTERM at step (\d+); resume with the same command and -o Global", said[-1]
    )
    assert newest_step(tmp_path / "out") == int(last) < 12
    said = run_python(TRAIN, *command, "Global.resume=true", cwd=tmp_path).stdout
    assert f"resuming at step {last} from" in said and "done: accuracy" in said
    assert steps(rows(tmp_path / "out")) == list(range(1, 13))


def test_a_mistake_is_told_once(tmp_path):
    code, said, _ = supervised(tmp_path, more=["DataLoader.Train.num_classes=22"])
    assert code == 2 and len(said) == 1
    assert re.match(
        r"ERROR rank \d failed at step 1: DataLoader.Train.num_classes: the data has 23 classes", said[0]
    )
