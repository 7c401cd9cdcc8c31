"""Machines of plsc run that die, freeze, lose the network and come back by chance, under a clock of the test.

The agreement and the machines are the real ones; ranks, disks and the network between them are played here.
"""

import contextlib
import itertools
import random
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from plsc.apps.supervise import agreement as agreement_module
from plsc.apps.supervise import machines as machines_module
from plsc.apps.supervise.agreement import DEAD, Agreement
from plsc.apps.supervise.facts import Facts
from plsc.apps.supervise.machines import Machine
from plsc.apps.supervise.options import Machines, Options
from plsc.apps.supervise.postmortem import Failure
from plsc.apps.supervise.reports import Client, Order, Report, Server, StartOrder
from plsc.errors import UserError
from tests.apps.supervise.test_agreement import Job
from tests.helpers.ports import free_port

pytestmark = pytest.mark.slow

TICK = 0.5  # seconds between two reports
EVERY = 5  # steps between two checkpoints


class World:
    """The training: which ranks run, and what they have saved on a disk that all machines share."""

    def __init__(self, gloo):
        self.gloo = gloo  # ranks whose peer is gone fail; else they hang
        self.now = 1000.0
        self.saved = None
        self.steps = None  # after which the training is done; None: never
        self.starts = {}  # generation, by its master -> {number of a machine: Start}
        self.at = {}  # -> step

    def start(self, host, options, overrides):
        master = options[options.index("--master") + 1] if options else f"alone {self.now}"
        if master not in self.at:
            resumes = "Global.resume=true" in overrides
            assert resumes == (self.saved is not None), "it begins anew over checkpoints"
            self.at[master] = self.saved or 0
        count = int(options[options.index("--nnodes") + 1]) if options else 1
        start = Start(self, host, master, count)
        assert host.number not in self.starts.setdefault(master, {})
        self.starts[master][host.number] = start
        return start

    def alive(self, master):
        return [start for start in self.starts[master].values() if start.code is None]

    def advance(self):
        for master, starts in self.starts.items():
            alive = self.alive(master)
            whole = alive and len(alive) == len(starts) == alive[0].count
            if whole and not any(start.host.frozen for start in alive):
                self.at[master] += 1
                signals = {start.signal for start in alive if start.signal}
                done = self.steps is not None and self.at[master] >= self.steps
                if self.at[master] % EVERY == 0 or signals or done:
                    self.saved = max(self.saved or 0, self.at[master])
                for start in alive:
                    if signals or done:
                        start.ends = 0
                        start.stopped = min(signals, default=None)
            elif self.gloo and len(starts) == max(start.count for start in starts.values()):
                for start in alive:
                    start.ends = 1


class Start:
    """As plsc.apps.supervise.job.Start."""

    def __init__(self, world, host, master, count):
        self.world = world
        self.host = host
        self.master = master
        self.count = count
        self.code = None
        self.ends = None  # with this code at the next look
        self.signal = None
        self.stopped = None
        self.killed = False
        self.watch = SimpleNamespace(
            pids=lambda: {0: 1},
            stopped=lambda: self.stopped,
            failure=lambda code, logs: self.failure(),
            so_far=lambda: None,
            waiting=list,
            ask_for_stacks=lambda: None,
        )

    def look(self, signals):
        if signals and self.signal is None:
            self.signal = "SIGTERM"
        self.code = self.ends

    def kill(self):
        self.code = -9

    def failure(self):
        if self.killed:
            return Failure(f"rank of {self.host.number} was killed", rank=self.host.number)
        return Failure("gloo", rank=self.host.number, consequence=True)


class Host:
    """A machine with its plsc run."""

    def __init__(self, fleet, number):
        self.fleet = fleet
        self.number = number
        self.frozen = self.cut = self.deaf = 0.0  # until when
        self.code = None
        self.boot()

    def boot(self):
        self.machine = Machine(
            Options([], max_failures=100, machines=self.fleet.options._replace(number=self.number))
        )
        self.machine._job = SimpleNamespace(
            start=lambda options, overrides, env: self.fleet.world.start(self, options, overrides),
            folder=Path("out"),
            cfg=None,
            ranks=1,
            logs="logs",
            say=lambda line, logged: self.said.append(line),
            is_full=lambda text: False,
        )
        self.said = []
        self.up = True
        self.delayed = None
        self.code = self.order = None
        self.number_of_report = 0
        self.contact = self.fleet.world.now
        if self.number == 0:
            self.fleet.boot_agreement()
        self.machine._prepare()

    def die(self):
        self.up = False
        if self.machine._start:
            self.machine._start.kill()

    def turn(self):
        """One turn of plsc run's loop."""
        world, machine = self.fleet.world, self.machine
        if not self.up or world.now < self.frozen or self.code is not None:
            return
        machine._look()
        if self.number == 0:
            self.code = machine._obey(self.ask())
            return
        code = machine._turn(self.order, world.now - self.contact)  # the last order, once more
        if code is None:
            machine._look()
            order = self.ask()
            if order and world.now >= self.deaf:
                self.order = order
                self.contact = world.now
            code = machine._turn(self.order, world.now - self.contact)
        if code is not None:
            machine._state = "over"
            self.ask()
            self.code = code
            self.up = False

    def ask(self):
        self.number_of_report += 1
        report = self.machine._report(self.number_of_report)
        report = Report.model_validate_json(report.model_dump_json())
        if not self.fleet.hosts[0].up or self.fleet.world.now < self.fleet.hosts[0].frozen:
            return None
        if self.fleet.world.now < self.cut:
            self.delayed = report
            return None
        if self.delayed:  # arrives after the break, and nobody waits for the answer
            self.fleet.agreement.report(self.delayed, self.fleet.world.now)
            self.delayed = None
        order = self.fleet.agreement.report(report, self.fleet.world.now)
        return Order.model_validate_json(order.model_dump_json())

    def own_lines(self):
        return [
            line for line in self.said if "has not answered" not in line and "while machine 0" not in line
        ]


class Fleet:
    def __init__(self, seed, least, most, wait, gloo):
        self.random = random.Random(seed)
        self.world = World(gloo)
        self.options = Machines(least, most, 0, "host0", 1, wait)
        self.agreement = None
        self.hosts = []
        for number in range(most):
            self.hosts.append(Host(self, number))

    def boot_agreement(self):
        job = Job()
        job.newest_step = lambda: self.world.saved
        self.agreement = Agreement(self.options, job, 1000, lambda facts: [])

    def step(self):
        self.world.now += TICK
        for host in self.random.sample(self.hosts, len(self.hosts)):
            host.turn()
        self.world.advance()
        self.check()

    def check(self):
        """What always holds."""
        world = self.world
        masters = [master for master in world.starts if world.alive(master)]
        for master in masters[:-1]:
            for start in world.alive(master):
                host = start.host
                out = world.now < max(host.frozen, host.cut, host.deaf, self.hosts[0].frozen) + 2 * TICK
                assert out or not self.hosts[0].up or world.now < self.booted + 2, "two starts at once"
        for host in self.hosts:
            agreement, machine = self.agreement, host.machine
            member = agreement._members.get(host.number)
            if machine._agreement == agreement.id and member and member.report.id == machine._id:
                lines = agreement._lines[member.first_line : machine._seen]
                assert host.own_lines()[-len(lines) :] == lines or not lines, (host.number, host.said, lines)

    booted = 0.0

    def happen(self):
        """Let something happen to a machine."""
        world = self.world
        host = self.random.choice(self.hosts)
        what = self.random.choice(["die", "freeze", "cut", "deaf", "rank", "boot", "boot", "boot"])
        seconds = self.random.choice([1, 2, 5, 9, 11, 14, 20])
        if what == "die" and host.up:
            host.die()
        elif what == "boot" and not host.up:
            if host.number == 0:
                self.booted = world.now
            host.boot()
        elif what == "freeze":
            host.frozen = world.now + seconds
        elif what == "cut" and host.number:
            host.cut = world.now + seconds
        elif what == "deaf" and host.number:
            host.deaf = world.now + seconds
        elif what == "rank" and host.up and host.machine._state == "running":
            host.machine._start.ends = 1
            host.machine._start.killed = True

    def heal(self):
        for host in self.hosts:
            host.frozen = host.cut = host.deaf = 0.0
            if not host.up:
                if host.number == 0:
                    self.booted = self.world.now
                host.boot()

    def go(self, seconds):
        end = self.world.now + seconds
        while self.world.now < end:
            self.step()

    def until(self, condition, seconds):
        end = self.world.now + seconds
        while not condition():
            assert self.world.now < end, [
                (h.number, h.code, h.machine._state, h.said[-3:]) for h in self.hosts
            ]
            self.step()


@pytest.fixture(autouse=True)
def played(monkeypatch):
    monkeypatch.setattr(machines_module.preflight, "collect", lambda *_, **__: Facts())
    monkeypatch.setattr(machines_module.preflight, "with_gpus", lambda facts, cfg: facts)
    monkeypatch.setattr(machines_module, "note_signals", lambda signals: None)
    monkeypatch.setattr(machines_module, "_ANSWER", 0.0)
    monkeypatch.setattr(agreement_module, "free_port", itertools.count(1).__next__)  # none comes twice


def running(fleet):
    return all(host.machine._state == "running" for host in fleet.hosts)


@pytest.mark.parametrize("gloo", [True, False])
@pytest.mark.parametrize("least, most, wait", [(2, 2, 5000.0), (3, 3, 5000.0), (1, 3, 40.0), (2, 3, 5000.0)])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_no_two_starts_run_and_all_get_to_the_end(seed, least, most, wait, gloo):
    fleet = Fleet(seed, least, most, wait, gloo)
    fleet.until(lambda: running(fleet), 60)
    for _ in range(400):
        fleet.step()
        if fleet.random.random() < 0.1:
            fleet.happen()
    fleet.heal()
    elastic = least < most
    fleet.go(30)
    if not elastic:
        fleet.until(lambda: running(fleet), 120)
    else:
        fleet.until(lambda: fleet.hosts[0].machine._state == "running", 120)
    fleet.go(5)
    stops = fleet.random.choice([None, *fleet.hosts])
    if stops:
        stops.machine._signals.append(15)
        fleet.until(lambda: stops.code is not None, 60)
        assert stops.code == 143
    fleet.world.steps = (fleet.world.saved or 0) + 20
    fleet.until(lambda: all(host.code is not None for host in fleet.hosts), 200)
    codes = {host.code for host in fleet.hosts if host is not stops}
    assert codes == {143 if stops and (stops.number == 0 or not elastic) else 0}


@pytest.mark.parametrize("error, code", [(UserError("out: cannot be read"), 2), (KeyError("host"), 1)])
def test_an_error_on_the_first_machine_ends_the_others(monkeypatch, error, code):
    machine = Machine(
        Options([], max_failures=100, machines=Machines(2, 2, 0, "127.0.0.1", free_port(), 60.0))
    )
    machine._job = Job()
    orders = []

    def take_part(agreement):
        client = Client("127.0.0.1", machine._machines.port)
        report = Report(machine=1, id="a", number=0, host="h", address="x", state="ready", generation=0)

        def ask():
            while not orders or orders[-1].action != "end":
                time.sleep(0.02)
                client.send(report)
                orders.append(client.order)
            client.send(report.model_copy(update={"state": "over"}))
            client.close()

        threading.Thread(target=ask, daemon=True).start()
        while not orders:
            time.sleep(0.02)
        raise error

    monkeypatch.setattr(machine, "_take_part", take_part)
    with contextlib.ExitStack() as stack, pytest.raises(type(error)):
        machine._lead(stack)
    assert (orders[-1].action, orders[-1].code) == ("end", code)
    assert orders[-1].lines[-1].startswith("ERROR machine 0 (") and str(error) in orders[-1].lines[-1]


def test_a_mistake_is_reported_after_other_reports_and_until_it_is_known():
    """The first machine may take the process for a second one with the number of a silent one, for
    seconds."""
    seen = []

    def answer(report):
        seen.append(report)
        return Order(agreement="a", action="wait", known=report.changes if len(seen) > 4 else 0)

    server = Server("127.0.0.1", 0, answer)
    port = server._listener.server_address[1]
    machine = Machine(Options([], max_failures=100, machines=Machines(2, 2, 1, "127.0.0.1", port, 60.0)))
    machine._client = Client("127.0.0.1", port)
    for _ in range(3):
        machine._client.send(machine._report(0))
    machine._refuse(UserError("out: cannot be read"))
    server.close()
    machine._client.close()
    numbers = [report.number for report in seen]
    assert numbers == sorted(set(numbers)) and seen[-1].state == "refused"
    assert seen[-1].details.outcome.cause.text == "out: cannot be read"


def test_an_order_that_is_older_than_the_others_wait_is_not_followed():
    """The process was stopped between the order and its turn."""
    machine = Machine(Options([], max_failures=100, machines=Machines(2, 2, 1, "127.0.0.1", 1, 60.0)))
    said = []
    machine._job = SimpleNamespace(start=pytest.fail, say=lambda line, logged: said.append(line))
    machine._agreement = "a"
    start = StartOrder(machines=[0, 1], master="10.0.0.1:1", overrides=[])
    order = Order(agreement="a", action="start", generation=1, start=start)
    assert machine._turn(order, DEAD + 1) is None
    assert machine._state == "ready" and "has not answered for 10 s; asking again" in said[0]
