"""Several machines, as hosts in network namespaces: dead links and machines, stopped ranks, odd names.

Tests on one machine show refusals and signals. Here is what needs an address per host.
"""

import re
import signal

import pytest

from tests.cluster.hosts import READY, Hosts
from tests.helpers.tiny_runs import TINY, rows

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not READY, reason="needs root, ip, iptables and unshare")]
SHORT = ["DataLoader.Train.batch_size=6", "DataLoader.Eval.dataset=null", "Global.loggers=[]"]
LONG = [*SHORT, "Global.max_steps=100000", "Global.epochs=100000"]
QUICK = ["Model.name=tests.cluster.short_silence:ShortSilence"]
LOST = 138


@pytest.fixture
def launched(tmp_path):
    hosts, jobs = Hosts(2, tmp_path), []

    def launched(*overrides, **keywords):
        out = f"Global.output_dir={tmp_path / 'out'}"
        jobs.append(hosts.launch(out, *overrides, config=str(TINY), **keywords))
        return hosts, jobs[-1]

    yield launched
    for job in jobs:
        job.close()
    hosts.close()


@pytest.mark.parametrize(
    "names",
    [None, ["", ""], ["127.0.1.1 node0\n", "127.0.1.1 node1\n"]],
    ids=["known", "unknown", "Debian"],
)
def test_hosts_train_whatever_their_names_resolve_to(launched, names):
    _, job = launched(*SHORT, names=names)
    assert job.wait() == [0, 0], job.text()


def test_an_address_of_another_machine_is_one_line(launched):
    _, job = launched(*SHORT, options=[["--host=10.77.0.10"], ["--host=10.77.0.99"]])
    assert job.wait()[1] == 2, job.text()
    assert re.search("no interface has the address 10.77.0.99", job.errors(1)[0])


def assert_lost(job, *hosts):
    assert job.wait(60, list(hosts)) == [LOST] * len(hosts), job.text()
    for host in hosts:
        (line,) = job.errors(host)
        assert re.match(rf"ERROR rank {host} (stopped|failed) in step \d+: ", line), line
        assert "terminate called" not in job.text(host)
        assert "Traceback (most recent call last)" not in job.text(host)


FAULTS = {
    "link": (lambda hosts, job: hosts.link(1, "down"), [0, 1]),
    "one direction": (lambda hosts, job: hosts.cut(1), [0, 1]),
    "power": (lambda hosts, job: (hosts.link(1, "down"), job.close_host(1)), [0]),
    "power of the first": (lambda hosts, job: (hosts.link(0, "down"), job.close_host(0)), [1]),
    "stopped": (lambda hosts, job: job.kill(1, signal.SIGSTOP), [0]),
    "killed": (lambda hosts, job: job.kill(1), [0]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_lost_peer_is_one_line_on_every_survivor(launched, fault):
    """One of them with the default of 28 s, which must come before Gloo's own 30 s."""
    act, survivors = FAULTS[fault]
    hosts, job = launched(*LONG, *([] if fault == "link" else QUICK))
    job.until_step(4)
    act(hosts, job)
    assert_lost(job, *survivors)


def test_a_rank_that_is_killed_in_a_save_keeps_nobody_waiting(launched, tmp_path):
    net = ["Model.name=tests.cluster.slow_save:SlowSave", f"Model.marks={tmp_path}"]
    (tmp_path / "slow").touch()
    _, job = launched(*LONG, *net)
    job.until(lambda: (tmp_path / "saving").exists())
    job.kill(1)
    assert_lost(job, 0)


@pytest.mark.parametrize("action", ["link", "one direction"])
def test_a_cut_of_three_seconds_does_no_harm(launched, tmp_path, action):
    hosts, job = launched(*SHORT, "Global.max_steps=200", "Global.epochs=200")
    job.until_step(4)
    FAULTS[action][0](hosts, job)
    with pytest.raises(AssertionError):
        job.until(lambda: False, timeout=3)
    hosts.mend(1)
    hosts.link(1, "up")
    assert job.wait() == [0, 0], job.text()
    assert len(rows(tmp_path / "out")) == 200
