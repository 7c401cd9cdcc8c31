"""plsc run on several machines, which share the loopback interface: what happens when one of them fails.

A run that went on must equal, bit for bit, one of as many ranks on a single machine that nothing happened to.
Breaks of the network and many more faults, with a network for each machine: `python -m tests.helpers.cluster
trials`.
"""

import re
import signal

import numpy as np
import pytest

from plsc.checkpoint.store import newest_step
from tests.helpers.bounds import assert_within
from tests.helpers.cluster import EVERY, STEPS, Cluster
from tests.helpers.launch import ROOT, launch
from tests.helpers.tiny_runs import TINY, assert_equal_runs, linear, rounded_run, rows, steps, train
from tests.helpers.warm import shared

pytestmark = pytest.mark.slow

SAMPLED = ["Head.sample_rate=0.3"]
SETTINGS = [f"Global.max_steps={STEPS}", f"Checkpoint.every_steps={EVERY}", *SAMPLED]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run of two ranks on one machine."""
    folder = tmp_path_factory.mktemp("whole").resolve()
    launch(ROOT / "tools/train.py", 2, folder, "-c", TINY, "-o", "Global.output_dir=out", *SETTINGS)
    return folder / "out"


@pytest.fixture
def two(tmp_path):
    """Two machines, started and at work."""
    with Cluster(tmp_path.resolve(), 2, namespaces=False, warm=shared()) as cluster:
        cluster.start_all(overrides=SAMPLED)
        cluster.wait_for_step(12)
        yield cluster


def test_kills_of_a_rank_and_of_both_supervisors_change_nothing(two, whole):
    """A machine whose plsc run is started again takes part again; so do the others where it was the first
    one's."""
    two.signal(1, "rank", signal.SIGKILL)
    two.wait_for_line(0, "rank 1 was killed .*restart")
    two.wait_for_step(22)
    two.restart(1, overrides=SAMPLED)
    two.wait_for_line(0, "was started anew; restart")
    two.wait_for_step(37)
    two.restart(0, overrides=SAMPLED)
    assert two.wait() == [0, 0] and not two.left(), two.all_said()
    assert_equal_runs(two.out, whole)
    restarts = [line for line in two.said(0) if "restart" in line]
    assert len(restarts) == 2, two.all_said()
    killed, anew = restarts
    assert re.match(
        r"WARNING machine 1 \(.*\): rank 1 was killed \(signal 9\) at step \d+; restart 1 from step \d+$",
        killed,
    )
    assert re.search(r"machine 1 \(.*\) was started anew; restart 2 from step \d+$", anew)
    assert killed in two.said(1)
    assert any("resuming from step" in line for line in two.said(0))
    logs = [sorted(path.name for path in (two.out / f"log/machine-{n}").glob("workerlog*")) for n in (0, 1)]
    assert logs == [["workerlog.0"], ["workerlog.0"]]


def test_a_signal_to_one_machine_saves_and_stops_all(two, whole):
    two.signal(1, "supervisor", signal.SIGTERM)
    assert two.wait() == [143, 143] and not two.left()
    step = newest_step(two.out / "checkpoints")
    line = f"INFO stopped on SIGTERM at step {step}; resume with the same command"
    assert [two.said(n)[-1] for n in (0, 1)] == [line, line]
    two.start_all(overrides=SAMPLED)
    assert two.wait() == [0, 0]
    assert_equal_runs(two.out, whole)


def test_a_mistake_on_one_machine_is_said_on_all(tmp_path):
    with Cluster(tmp_path.resolve(), 2, namespaces=False, warm=shared()) as cluster:
        cluster.start(0)
        cluster.start(1, overrides=["Head.name=none"])
        assert cluster.wait(60) == [2, 2]
        for number in (0, 1):
            assert any("Head.name" in line and "none" in line for line in cluster.said(number))
        assert not (cluster.out / "checkpoints").exists()


def test_a_machine_that_is_lost_is_left_out_and_taken_back_at_the_next_restart(tmp_path):
    """The global batch stays, so the losses of a network without BatchNorm do, but for rounding."""
    elastic = ["--nnodes", "2:3", "--wait", "3"]
    network = ["Model={name: 'tests.helpers.tiny_runs:Linear', embedding_size: 8}"]
    whole = tmp_path / "whole"
    whole.mkdir()
    settings = [f"Global.max_steps={STEPS}", f"Checkpoint.every_steps={EVERY}", *network]
    launch(ROOT / "tools/train.py", 3, whole, "-c", TINY, "-o", "Global.output_dir=out", *settings)
    with Cluster(tmp_path.resolve(), 3, namespaces=False, warm=shared()) as cluster:
        cluster.start_all(*elastic, overrides=network)
        cluster.wait_for_step(7)
        cluster.signal(2, "supervisor", signal.SIGKILL)
        cluster.wait(of=[2])
        cluster.wait_for_line(0, r"start 2 from step \d+ on 2 machines: .* without machine 2$")
        cluster.wait_for_step(12)
        cluster.start(2, *elastic, overrides=network)
        cluster.wait_for_line(2, "has come; it takes part from the next start on$")
        cluster.signal(1, "rank", signal.SIGKILL)
        assert cluster.wait() == [0, 0, 0] and not cluster.left()
        for number in range(3):
            assert re.search(r"start 3 from step \d+ on 3 machines", cluster.said(number)[-1])
        assert steps(rows(cluster.out)) == steps(rows(whole / "out"))
        losses = [[row["loss"] for row in rows(output)] for output in (cluster.out, whole / "out")]
        batch = ["DataLoader.Train.batch_size=36", "DataLoader.Eval.dataset=null"]  # of three ranks
        alone = lambda output, net: train(output, *settings, *batch, backbone=net)
        _, (bound, _) = rounded_run(tmp_path / "rounded", alone, linear())
        assert_within(*map(np.array, losses), bound["loss"], paths=2)


def test_machines_that_do_not_see_one_folder_are_refused_before_the_first_step(tmp_path):
    with Cluster(tmp_path.resolve(), 2, namespaces=False, warm=shared()) as cluster:
        for number in (0, 1):
            cluster.start(number, overrides=["Global.output_dir=out"])  # of its own working folder
        assert cluster.wait(60) == [2, 2]
        for number in (0, 1):
            line = r"ERROR .*Global.output_dir: out of host \S+ is not there, or cannot be written, on \S+: .* mount one on all machines"
            assert re.match(line, cluster.said(number)[-1])
            folder = tmp_path / f"host{number}/out"
            assert not (folder / "checkpoints").exists() and not list(folder.glob(".shared-*"))
