"""One of several machines, without its ranks."""

import os
import signal
from types import SimpleNamespace

import pytest

from plsc.apps.supervise import machines, preflight
from plsc.apps.supervise.facts import Facts
from plsc.apps.supervise.machines import Machine
from plsc.apps.supervise.options import read_options

pytestmark = pytest.mark.slow


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


class Silent:
    """A client whose first machine answers after so many seconds, or never."""

    def __init__(self, clock, answer_at):
        self.clock = clock
        self.answer_at = answer_at
        self.contact = 0.0
        self.mistake = None
        self.order = "old"
        self.send = self.close = lambda *_: None

    def post(self, *_, **__):
        if self.clock[0] >= self.answer_at:
            self.contact = self.clock[0]
            self.order = "new"


@pytest.mark.parametrize(("answer_at", "first"), [(101.0, "new"), (1e9, "old")])
def test_a_machine_that_stood_still_listens_before_it_ends_its_ranks(tmp_path, monkeypatch, answer_at, first):
    clock, turns = [0.0], []
    machine = a_machine(tmp_path)
    monkeypatch.setattr(machines.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(machines.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    monkeypatch.setattr(machines, "Client", lambda *_: Silent(clock, answer_at))
    monkeypatch.setattr(machine, "_prepare", lambda: None)
    looks = iter([0.0, 100.0])

    def look():
        clock[0] = max(clock[0], next(looks, 0.0))  # it stands still for 100 s

    def turn(order, silence):
        if clock[0] < 100:
            return None
        turns.append((order, silence > machines.DEAD, clock[0]))
        return 0

    monkeypatch.setattr(machine, "_look", look)
    monkeypatch.setattr(machine, "_turn", turn)
    machine._follow()
    ((order, silent, when),) = turns
    assert (order, silent) == (first, first == "old")
    assert when < 102.2 if silent else when < 101.2


def test_ranks_that_have_saved_are_stopped_although_the_launcher_got_the_signal_too(tmp_path):
    machine = a_machine(tmp_path)
    watch = SimpleNamespace(pids=dict, stopped=lambda: "SIGTERM")
    machine._start = SimpleNamespace(look=lambda signals: None, code=15, watch=watch)
    machine._state = "running"
    machine._look()
    outcome = machine._report(1).details.outcome
    assert (outcome.code, outcome.stopped) == (0, "SIGTERM")
