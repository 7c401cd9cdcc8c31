"""Run the ranks of one of several machines, as all machines agree: `plsc run --nnodes`.

The machine tells the first one twice a second what it does, and does what it is ordered to. It ends its ranks
itself when the first machine has not answered for 10 s: by then the others go on without it.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Mapping

from plsc.apps.supervise import preflight
from plsc.apps.supervise.address import listening_address, own_address
from plsc.apps.supervise.agreement import DEAD, STOOD, Agreement
from plsc.apps.supervise.facts import Facts
from plsc.apps.supervise.job import Job, Start, note_signals
from plsc.apps.supervise.options import Machines, Options
from plsc.apps.supervise.postmortem import Failure
from plsc.apps.supervise.reports import (
    NO_ANSWER,
    Cause,
    Client,
    Details,
    Order,
    Outcome,
    Report,
    Server,
    StartOrder,
    Stuck,
)
from plsc.apps.supervise.secret import read_secret
from plsc.distributed import environment, guard, lock
from plsc.errors import UserError, shown

_POLL = 0.1  # seconds
_HEAR = 2.0  # seconds to be answered after this machine stood still
_RETRY = 1.0  # seconds between two questions for an address
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # else Gloo takes that of the host name
_ANSWER = 1.0  # seconds for ranks to write where they are, before they are killed


class Machine:
    """One call of plsc run on one of several machines."""

    def __init__(self, options: Options):
        self._options = options
        self._machines: Machines = options.machines
        self._secret = read_secret()
        self._id = uuid.uuid4().hex
        self._host = socket.gethostname()
        self._address = ""
        self._interface: str | None = None
        self._signals: list[int] = []
        self._state = "ready"
        self._generation = 0
        self._start: Start | None = None
        self._began = False
        self._details = Details()
        self._changes = 0  # of the details
        self._known = 0  # the changes that the first machine knows
        self._facts: Facts | None = None
        self._agreement = ""
        self._seen = 0
        self._client: Client | None = None  # not on the first machine
        self._warned = False

    def run(self) -> int:
        """Run; the exit codes are those of a single machine, and the same on all of them."""
        note_signals(self._signals)
        machines = self._machines
        try:
            self._job = Job(self._options, machines.number)
            # Again: a class that the config names may have imported Paddle, which takes SIGTERM.
            note_signals(self._signals)
            self._find_address()
            with contextlib.ExitStack() as stack:
                if machines.number == 0:
                    stack.enter_context(lock.hold(self._job.folder))
                    return self._lead(stack)
                return self._follow()
        except UserError as error:
            self._refuse(error)
            raise
        finally:
            if self._client:
                self._client.close()

    def _find_address(self) -> None:
        """Find this machine's address; the name of the first one may get its own only when that begins."""
        began = time.monotonic()
        waits = False
        while True:
            try:
                self._address, self._interface = own_address(self._machines.host, self._machines.port)
                return
            except UserError as error:
                if time.monotonic() > began + self._machines.wait or self._signals:
                    raise
                if not waits:
                    self._say(f"INFO {error}; asking again for {self._machines.wait:g} s")
            waits = True
            time.sleep(_RETRY)

    # -- the first machine, and the others
    # ----------------------------------------------------------------------------------

    def _lead(self, stack: contextlib.ExitStack) -> int:
        agreement = Agreement(
            self._machines, self._job, self._options.max_failures, self._compare, self._elastic_overrides()
        )
        server = Server(
            listening_address(self._machines.host),
            self._machines.port,
            lambda report: agreement.report(report, time.monotonic(), time.time()),
            agreement.id,
            self._secret,
            self._say,
        )
        stack.callback(server.close)
        try:
            code = self._take_part(agreement)
        except Exception as error:  # whatever it is, the others must not wait for this machine
            self._kill()
            code = 2 if isinstance(error, UserError) else 1
            agreement.end(code, f"ERROR machine 0 ({shown(self._host)}): {_on_one_line(error)}")
            self._wait_for_others(agreement)
            raise
        self._wait_for_others(agreement)
        return code

    def _take_part(self, agreement: Agreement) -> int:
        """Do what the agreement orders this machine, the first one, until the end; return the exit code."""
        self._prepare()
        number = 0
        while True:
            number += 1
            self._look()
            report = self._report(number)
            code = self._obey(agreement.report(report, time.monotonic(), time.time()))
            if code is not None:
                return code
            time.sleep(_POLL)

    def _compare(self, facts: Mapping[int, Facts]) -> list[str]:
        """Compare the machines before a start; print their table before the first, and where they differ."""
        problems = preflight.compare(facts)
        if problems or not self._generation:
            print(preflight.format_table(facts), file=sys.stderr, flush=True)
        return problems

    def _wait_for_others(self, agreement: Agreement) -> None:
        """Answer until all machines know that the run has ended, or are silent."""
        end = time.monotonic() + DEAD + 1
        while not agreement.is_over(time.monotonic()) and time.monotonic() < end:
            time.sleep(_POLL)

    def _follow(self) -> int:
        self._prepare()
        client = self._client = Client(self._machines.host, self._machines.port, self._secret)
        posted = 0
        looked = time.monotonic()
        woke = -math.inf
        while True:
            self._look()
            if client.mistake:
                self._kill()
                raise UserError(client.mistake)
            client.post(self._report(0), at_once=posted != self._changes)
            posted = self._changes
            now = time.monotonic()
            if now > looked + STOOD:
                woke = now  # all may have stood still; the last order is as old as that
            looked = now
            if client.contact < woke and now < woke + _HEAR:
                time.sleep(_POLL)
                continue
            code = self._turn(client.order, now - client.contact)
            if code is not None:
                self._state = "over"
                with contextlib.suppress(*NO_ANSWER):
                    client.send(self._report(0))
                return code
            time.sleep(_POLL)

    def _turn(self, order: Order | None, silence: float) -> int | None:
        """Follow the last order, unless it is older than DEAD seconds; return the exit code at the end."""
        if silence > DEAD:
            return self._without_contact(silence)
        self._warned = False
        return self._obey(order) if order else None

    def _without_contact(self, seconds: float) -> int | None:
        """Do what follows when the first machine has not answered for so long; return the exit code at the
        end."""
        where = f"machine 0 ({self._machines.host}:{self._machines.port})"
        killed = self._kill()
        if not self._warned:
            self._warned = True
            ended = "; the ranks of this machine were ended" if killed else ""
            self._say(
                f"WARNING {where} has not answered for {DEAD:g} s{ended}; asking again for {self._machines.wait:g} s"
            )
        if killed:
            self._prepare()
        if self._signals:
            name = signal.Signals(self._signals[0]).name
            self._say(f"INFO stopped on {name} while {where} does not answer; the same command goes on")
            return guard.exit_code(signal.Signals[name])
        if seconds > DEAD + self._machines.wait:
            self._say(
                f"ERROR {where} has not answered for {seconds:.0f} s: see that plsc run is at work there and that its port "
                "can be reached; the same command on all machines goes on"
            )
            return 1
        return None

    def _refuse(self, error: UserError) -> None:
        """Report a mistake that keeps this machine from taking part; the first machine may start a little
        later."""
        if self._machines.number == 0:
            return
        cause = Cause(text=_on_one_line(error), user=True)
        self._enter("refused", Details(outcome=Outcome(code=2, cause=cause)))
        client = self._client = self._client or Client(self._machines.host, self._machines.port, self._secret)
        end = time.monotonic() + DEAD
        while time.monotonic() < end:
            with contextlib.suppress(*NO_ANSWER):
                client.send(self._report(0))
                self._agreement = client.order.agreement
                if client.order.action == "end" or client.order.known == self._changes:
                    return
            if client.mistake:
                return
            time.sleep(_POLL)

    def _elastic_overrides(self) -> list[str]:
        """Return what keeps the samples of a step the same on any number of machines."""
        if not self._machines.elastic:
            return []
        train = self._job.cfg.DataLoader.Train
        batch = train.global_batch or train.global_batch_on(self._job.ranks * self._machines.most)
        return [f"DataLoader.Train.global_batch={batch}", "DataLoader.Train.keep_global_batch=true"]

    # -- reports and orders
    # -------------------------------------------------------------------------------------------------

    def _report(self, number: int) -> Report:
        return Report(
            machine=self._machines.number,
            id=self._id,
            number=number,
            host=self._host,
            address=self._address,
            state=self._state,
            generation=self._generation,
            began=self._began,
            signal=signal.Signals(self._signals[0]).name if self._signals else None,
            agreement=self._agreement,
            seen=self._seen,
            time=time.time(),
            changes=self._changes,
            details=None if self._known == self._changes else self._details,
        )

    def _obey(self, order: Order) -> int | None:
        """Print the lines of an order and follow it; return the exit code at the end."""
        if order.agreement != self._agreement:
            self._kill()  # plsc run was started anew on machine 0, and knows of no start
            if self._agreement:
                self._prepare()
            self._agreement = order.agreement
            self._generation = self._seen = self._known = 0
        for line in order.lines[max(0, self._seen - order.seen) :]:
            self._say(line)
        self._seen = max(self._seen, order.seen + len(order.lines))
        self._known = order.known
        if order.action == "end":
            self._kill()
            return order.code
        if order.action == "prepare" and self._state == "ended":
            self._prepare()
        elif order.action == "start" and order.generation > self._generation and self._state == "ready":
            self._begin(order.generation, order.start)
        elif order.action == "stop" and order.generation == self._generation and self._state == "running":
            self._stop()
        return None

    def _say(self, line: str) -> None:
        self._job.say(line, logged=self._machines.number == 0)

    # -- starts
    # -------------------------------------------------------------------------------------------------------------

    def _enter(self, state: str, details: Details) -> None:
        self._state = state
        self._details = details
        self._changes += 1

    def _prepare(self) -> None:
        """Get ready for a start: look at this machine."""
        if (
            self._facts
        ):  # the data are not read again, nor free memory: ranks that were just ended may hold some
            self._facts = preflight.with_gpus(self._facts, self._job.cfg)
        else:
            self._facts = preflight.collect(
                self._job.cfg,
                ranks=self._job.ranks,
                machines=self._machines.most,
                address=self._address,
                interface=self._interface or "",
                say=self._say,
            )
        note_signals(self._signals)  # again: a data set may have imported Paddle, too
        self._enter("ready", Details(facts=self._facts))

    def _begin(self, generation: int, start: StartOrder) -> None:
        """Start the ranks of this machine."""
        number = self._machines.number
        env = {environment.MACHINES: str(len(start.machines))}
        if number == 0:
            env[guard.LOCKED] = str(self._job.folder.resolve())
        if self._interface:
            env.update({name: self._interface for name in _INTERFACES if name not in os.environ})
        together = ["--nnodes", str(len(start.machines)), "--rank", str(start.machines.index(number))]
        together += ["--master", start.master, "--host", self._address]
        options = together if len(start.machines) > 1 else []
        self._generation = generation
        self._began = False
        self._start = self._job.start(options, start.overrides, env)
        self._enter("running", Details())

    def _look(self) -> None:
        """Look after the ranks of this machine; their end gives the outcome."""
        if self._state != "running":
            return
        start = self._start
        start.look(self._signals)
        self._began = self._began or bool(start.watch.pids())
        if start.code is None:
            return
        stopped = start.watch.stopped()
        failed = None
        if start.code != 0 and not stopped:
            failed = (
                start.watch.failure(abs(start.code), self._job.logs) if self._signals else start.failure()
            )
        code = 0 if stopped else start.code  # Slurm signals all processes, and the launcher then fails
        self._enter_ended(Outcome(code=code, stopped=stopped, cause=_as_cause(failed)))

    def _stop(self) -> None:
        """End the ranks, because the start has ended elsewhere; note first which of them have failed, and
        where they are."""
        watch = self._start.watch
        watch.ask_for_stacks()
        end = time.monotonic() + _ANSWER
        while time.monotonic() < end:
            self._look()
            if self._state != "running":
                return
            time.sleep(_POLL)
        failed = watch.so_far()
        stuck = [Stuck(rank=w.rank, text=w.text, begun=w.begun, halted=w.halted) for w in watch.waiting()]
        self._start.kill()
        self._enter_ended(Outcome(code=1, cause=_as_cause(failed), stuck=stuck))

    def _enter_ended(self, outcome: Outcome) -> None:
        full = outcome.code != 0 and self._job.is_full(outcome.cause.text if outcome.cause else "")
        outcome = outcome.model_copy(update={"full": full})
        self._enter("ended", Details(outcome=outcome))

    def _kill(self) -> bool:
        """Kill the ranks of this machine; return whether there were any."""
        if self._state != "running":
            return False
        self._start.kill()
        return True


def _on_one_line(error: Exception) -> str:
    text = "; ".join(str(error).splitlines())
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"


def _as_cause(failed: Failure | None) -> Cause | None:
    if failed is None:
        return None
    age = max(0.0, time.time() - failed.time) if failed.time else 0.0
    return Cause(
        text=failed.text, user=failed.user, consequence=failed.consequence, rank=failed.rank, age=age
    )
