"""One of several machines, without its ranks."""

import os
import signal
from types import SimpleNamespace

import pytest

from plsc.apps.supervise import preflight
from plsc.apps.supervise.facts import Facts
from plsc.apps.supervise.machines import Machine
from plsc.apps.supervise.options import read_options


@pytest.fixture(autouse=True)
def handlers():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before):
        signal.signal(number, handler)


def a_machine(folder):
    machine = Machine(
        read_options(
            ["--nnodes", "2", "--rank", "1", "--master", "127.0.0.1:9", "--nproc_per_node", "1", "train.py"]
        )
    )
    machine._job = SimpleNamespace(cfg=None, ranks=1, folder=folder, is_full=lambda text: False)
    machine._find_address()
    return machine


def test_signals_are_noted_although_a_data_set_has_brought_paddle(tmp_path, monkeypatch):
    def collect(*_, **__):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as the import of Paddle does
        return Facts()

    monkeypatch.setattr(preflight, "collect", collect)
    machine = a_machine(tmp_path)
    machine._prepare()
    os.kill(os.getpid(), signal.SIGTERM)
    assert machine._signals == [signal.SIGTERM]


def test_ranks_that_have_saved_are_stopped_although_the_launcher_got_the_signal_too(tmp_path):
    machine = a_machine(tmp_path)
    watch = SimpleNamespace(pids=dict, stopped=lambda: "SIGTERM")
    machine._start = SimpleNamespace(look=lambda signals: None, code=15, watch=watch)
    machine._state = "running"
    machine._look()
    outcome = machine._report(1).details.outcome
    assert (outcome.code, outcome.stopped) == (0, "SIGTERM")
