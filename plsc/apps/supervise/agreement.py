"""Decide for all machines of a run: when to start and with which of them, to restart, from which step, to
end.

The first machine has an Agreement, to which all report, itself too. It knows no sockets, processes and
clocks:

    order = agreement.report(report, now)       # what that machine has to do

A start has a number, its generation. It ends on all machines as soon as it has ended on one otherwise than
well, or when one is silent for DEAD seconds; then the earliest cause is said, with the same line on all
machines.
"""

from __future__ import annotations

import signal
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from plsc.apps.supervise.address import free_port
from plsc.apps.supervise.history import History, describe_saved, describe_unsaved
from plsc.apps.supervise.job import resuming
from plsc.apps.supervise.options import Machines
from plsc.apps.supervise.reports import HUNG, Cause, Details, Order, Outcome, Report, StartOrder
from plsc.distributed import guard
from plsc.errors import shown
from plsc.utils.text import counted

DEAD = 10.0  # seconds without a report; also without an answer, after which a machine ends its ranks itself
TAKEN_OVER = 3.0  # seconds after which a further process with the number of a silent one takes its place
STOOD = 3.0  # seconds without any report, its own included: this machine stood still, and could hear none
_AGAIN = 4.0  # seconds for the others to be heard again after that
_REMIND = 30.0  # seconds between two lines about machines that are waited for
_BEGIN = 600.0  # seconds for the first rank of a machine to begin


class Local(Protocol):
    """What the agreement asks about the first machine, see plsc.apps.supervise.job.Job."""

    logs: str
    chosen: bool
    resumes: bool
    resumes_newest: bool

    def newest_step(self) -> int | None: ...
    def is_unfinished(self, newest: int | None) -> bool: ...
    def describe_resume(self, newest: int) -> str: ...
    def stamp(self, step: int | None) -> object: ...


Compare = Callable[[Mapping[int, dict]], list[str]]


@dataclass
class _Member:
    """The last report of a machine."""

    report: Report
    heard: float
    details: Details = field(default_factory=Details)
    known: int = 0  # the changes of the details
    changed: float = 0.0  # when the details came
    clock_offset: float = 0.0  # seconds that its clock is ahead of ours
    first_line: int = 0  # of the agreement's, after those that are older than its process
    leaves: bool = False  # asked to stop, or with a mistake, it ends while the others go on

    @property
    def is_known(self) -> bool:
        """Whether the details are those of the report."""
        return self.known == self.report.changes

    @property
    def name(self) -> str:
        return f"machine {self.report.machine} ({shown(self.report.host)})"


class Agreement:
    """What the machines of a run agree on. Thread-safe. `id`: of all its orders.

    Args:
        machines: how many there are to be. job: the first machine's.
        max_failures: give up after so many in a row without a new checkpoint.
        compare: is called before each start with the facts of each machine; returns a line for each problem.
        overrides: of the config, for every start.
    """

    def __init__(
        self,
        machines: Machines,
        job: Local,
        max_failures: int,
        compare: Compare,
        overrides: Iterable[str] = (),
    ):
        self.id = uuid.uuid4().hex
        self._machines = machines
        self._job = job
        self._history = History(max_failures, job.stamp)
        self._compare = compare
        self._overrides = list(overrides)
        self._lock = threading.Lock()
        self._members: dict[int, _Member] = {}
        self._rivals: dict[int, tuple[str, float]] = {}  # a second process with a number, and when it came
        self._phase = "gathering"  # running, stopping, gathering again, ...; ended
        self._since: float | None = None  # the phase
        self._ticked = 0.0
        self._not_before = 0.0  # a start
        self._reminded = 0.0
        self._generation = 0
        self._start: StartOrder | None = None
        self._ids: dict[int, str] = {}  # of the processes that take part
        self._noted: list[_Noted] = []  # causes that no machine has reported itself
        self._lines: list[str] = []
        self._last = 0  # number of the lines before those of the end
        self._code = 0

    # -- reports and orders
    # -------------------------------------------------------------------------------------------------

    def report(self, report: Report, now: float, clock: float | None = None) -> Order:
        """Take the report of a machine, and return what it has to do.

        now: time.monotonic(). clock: time.time(); None: the clocks are not compared.
        """
        with self._lock:
            if report.machine >= self._machines.most:
                return self._refuse(
                    report,
                    f"--rank {report.machine}: the run has {self._machines.most} machines, numbered from 0; change --nnodes or --rank",
                )
            member = self._members.get(report.machine)
            has_gone = member and (member.leaves or member.report.state == "over")
            if member and member.report.id != report.id and not has_gone:
                if order := self._doubt(report, member, now):
                    return order
                member = None
            if member is None or member.report.id != report.id:
                first = self._last if self._phase == "ended" else len(self._lines)
                member = self._members[report.machine] = _Member(report, now, first_line=first)
                if self._phase in ("running", "stopping"):
                    self._lines.append(f"INFO {member.name} has come; it takes part from the next start on")
            if report.number >= member.report.number:  # else it was delayed on its way
                member.report = report
                member.heard = now
                member.clock_offset = report.time - clock if clock else 0.0
                if report.details is not None and report.changes != member.known:
                    member.details = report.details
                    member.known = report.changes
                    member.changed = now
            self._tick(now)
            return self._order(member)

    def end(self, code: int, line: str) -> None:
        """End the run on all machines, unless it has ended."""
        with self._lock:
            if self._phase != "ended":
                self._end(code, line)

    def is_over(self, now: float) -> bool:
        """Say whether the run has ended, on the other machines too, but for those that are silent."""
        with self._lock:
            others = [m for number, m in self._members.items() if number and m.report.state != "refused"]
            return self._phase == "ended" and not any(self._answers(member, now) for member in others)

    def _doubt(self, report: Report, member: _Member, now: float) -> Order | None:
        """Answer a further process with the number of a machine; None if it takes the place of one that is
        silent."""
        number = report.machine
        rival, came = self._rivals.get(number, ("", now))
        if rival != report.id:
            self._rivals[number] = (report.id, now)
            came = now
        if now > member.heard + TAKEN_OVER:
            del self._rivals[number]
            return None
        if now > came + TAKEN_OVER:
            return self._refuse(
                report,
                f"--rank {number}: {member.name} is at work with this number; give each machine its own",
            )
        return Order(agreement=self.id, action="wait", seen=report.seen)

    def _refuse(self, report: Report, line: str) -> Order:
        return Order(agreement=self.id, action="end", code=2, seen=report.seen, lines=[f"ERROR {line}"])

    def _order(self, member: _Member) -> Order:
        report = member.report
        takes_part = self._phase in ("running", "stopping") and self._ids.get(report.machine) == report.id
        is_behind = report.generation < self._generation
        follows = report.agreement == self.id  # else it first has to end what an earlier process ordered
        seen = max(report.seen if follows else 0, member.first_line)
        order = Order(
            agreement=self.id,
            action="wait",
            generation=self._generation,
            seen=seen,
            lines=self._lines[seen:],
            known=member.known,
        )
        if self._phase == "ended":
            order.action = "end"
            order.code = self._code
        elif not follows:
            pass
        elif member.leaves and not takes_part:
            order.action = "end"
            order.code = guard.exit_code(signal.Signals[report.signal]) if report.signal else 2
        elif report.state == "running" and (is_behind or not takes_part or self._phase == "stopping"):
            order.action = "stop"
            order.generation = report.generation
        elif report.state == "ended" and (is_behind or not takes_part):
            order.action = "prepare"
        elif report.state == "ready" and is_behind and takes_part:
            order.action = "start"  # also while it is stopping: each has to say how it ended
            order.start = self._start
        return order

    # -- phases
    # -------------------------------------------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        if self._since is None:
            self._since = self._reminded = self._ticked = now
        if now > self._ticked + STOOD:
            self._listen_again(now)
        self._ticked = max(now, self._ticked)
        self._release(now)
        if self._phase == "gathering":
            self._gather(now)
        elif self._phase == "running":
            self._look(now)
        elif self._phase == "stopping":
            self._collect(now)

    def _enter(self, phase: str, now: float) -> None:
        self._phase = phase
        self._since = self._reminded = now

    def _answers(self, member: _Member, now: float) -> bool:
        return member.report.state != "over" and now <= member.heard + _patience(member)

    def _listen_again(self, now: float) -> None:
        """Give machines time to be heard after this one stood still; their last reports may be as old as
        that."""
        for member in self._members.values():
            if self._answers(member, self._ticked):
                member.heard = max(member.heard, now + _AGAIN - _patience(member))
        self._not_before = max(self._not_before, now + _AGAIN + 1)

    def _release(self, now: float) -> None:
        """Let machines go that take no part and were asked to stop; without one that is needed the run
        ends."""
        if self._phase == "ended":
            return
        for number, member in self._members.items():
            asked = member.report.signal and not member.leaves and self._answers(member, now)
            if not asked or self._ids.get(number) == member.report.id:
                continue
            name = member.report.signal
            if number and self._machines.elastic:
                self._let_go(member, f"leaves on {name}")
            elif self._phase == "gathering":
                code = guard.exit_code(signal.Signals[name])
                self._end(code, f"INFO stopped on {name} before a start; the same command goes on")
                return

    def _end(self, code: int, *lines: str) -> None:
        self._last = len(self._lines)
        self._lines += lines
        self._code = code
        self._phase = "ended"

    def _gather(self, now: float) -> None:
        """Wait for the machines, and start when all are ready, or after a time when enough are."""
        here = {n: m for n, m in sorted(self._members.items()) if self._answers(m, now) and not m.leaves}
        if refusing := [m for m in here.values() if m.report.state == "refused" and m.is_known]:
            if not (self._machines.elastic and self._generation):
                self._end(2, *(f"ERROR {m.name}: {m.details.outcome.cause.text}" for m in refusing))
                return
            for member in refusing:
                self._let_go(member, f"takes no part: {member.details.outcome.cause.text}")
        ready = {n: m for n, m in here.items() if m.report.state == "ready" and self._is_understood(m)}
        if 0 not in ready:
            self._since = now  # the wait begins when this machine could start itself
        if 0 not in ready or now < self._not_before:
            return
        expected = self._machines.most - sum(member.leaves for member in self._members.values())
        if len(ready) < expected and now < self._since + self._machines.wait:
            if now > self._reminded + _REMIND:
                self._reminded = now
                self._lines.append(f"INFO waiting for {self._missing(ready)}")
            return
        if len(ready) < self._machines.least:
            waited = (
                f"within {self._machines.wait:g} s" if expected >= self._machines.least else "that are left"
            )
            self._end(
                1,
                f"ERROR {len(ready)} of at least {self._machines.least} machines {waited}: {self._missing(ready)} did not come; "
                "giving up, the same command on all of them goes on",
            )
            return
        self._begin(ready, now)

    def _missing(self, ready: Iterable[int]) -> str:
        missing = [str(number) for number in range(self._machines.most) if number not in ready]
        return f"{'machine' if len(missing) == 1 else 'machines'} {', '.join(missing)}"

    def _is_understood(self, member: _Member) -> bool:
        return member.is_known and member.report.agreement == self.id

    def _let_go(self, member: _Member, why: str) -> None:
        member.leaves = True
        self._lines.append(f"INFO {member.name} {why}; the others go on")

    def _begin(self, ready: dict[int, _Member], now: float) -> None:
        """Start the ranks on these machines, unless they differ."""
        facts = {
            n: m.details.facts.model_copy(update={"clock_offset": m.clock_offset}) for n, m in ready.items()
        }
        if problems := self._compare(facts):
            self._end(2, *(f"ERROR {problem}" for problem in problems))
            return
        newest = self._job.newest_step()
        if self._generation == 0:
            resumes = not self._job.chosen and self._job.is_unfinished(newest)
            self._history.begin(newest, resumes, self._job.resumes_newest)
            if resumes:
                self._lines.append(self._job.describe_resume(newest))
        elif self._history.step is not None:
            self._history.go_on_from(newest)
        self._generation += 1
        first = next(iter(ready.values()))
        self._start = StartOrder(
            machines=list(ready),
            master=f"{first.report.address}:{free_port()}",
            overrides=[*self._overrides, *(resuming() if self._history.step is not None else [])],
        )
        self._ids = {number: member.report.id for number, member in ready.items()}
        self._noted = []
        names = ", ".join(
            f"{number} {shown(m.report.host)} {m.report.address}" for number, m in ready.items()
        )
        without = f", without {self._missing(ready)}" if len(ready) < self._machines.most else ""
        count = counted(len(ready), "machine")
        step = self._history.step
        where = "the beginning" if step is None else f"step {step}"
        if step is None and newest is not None and self._job.resumes:
            where = "the checkpoint that the config names"
        self._lines.append(f"INFO start {self._generation} from {where} on {count}: {names}{without}")
        self._enter("running", now)

    def _look(self, now: float) -> None:
        """Notice that the start has ended, or has to."""
        outcomes = self._outcomes()
        for number in self._ids.keys() - outcomes.keys():
            self._notice(number, now)
        if self._noted or any(outcome.code for outcome in outcomes.values()):
            self._enter("stopping", now)
        elif len(outcomes) == len(self._ids):
            self._finish(outcomes, now)

    def _notice(self, number: int, now: float) -> None:
        """Note why the ranks of a machine that has not reported their end are not at work."""
        member = self._members[number]
        report = member.report
        if report.id != self._ids[number]:
            self._note(number, "was started anew", member.heard)
        elif not self._answers(member, now):
            self._note(number, f"has not been heard of for {_patience(member):g} s", member.heard)
        elif report.state == "ready" and report.generation == self._generation:
            self._note(number, "had lost the connection to machine 0 and ended its ranks", now)
        elif report.state == "running" and not report.began and now > self._since + _BEGIN:
            self._note(number, f"has no rank that has begun within {_BEGIN:g} s", now)

    def _outcomes(self) -> dict[int, Outcome]:
        """Return how the start has ended, of the machines where it has."""
        members = {number: self._members[number] for number in self._ids}
        return {
            number: member.details.outcome
            for number, member in members.items()
            if member.report.state in ("ended", "refused")
            and (member.report.id, member.report.generation) == (self._ids[number], self._generation)
            and member.is_known
        }

    def _note(self, number: int, what: str, when: float) -> None:
        if number not in [each.machine for each in self._noted]:
            self._noted.append(_Noted(number, f"{self._members[number].name} {what}", when))

    def _collect(self, now: float) -> None:
        """Wait until the ranks of all machines have ended, then decide."""
        outcomes = self._outcomes()
        waiting = self._ids.keys() - outcomes.keys()
        for number in waiting:
            self._notice(number, now)
        if waiting <= {noted.machine for noted in self._noted}:
            self._finish(outcomes, now)

    def _finish(self, outcomes: dict[int, Outcome], now: float) -> None:
        """Decide what follows after a start that has ended on all machines."""
        whole = len(outcomes) == len(self._ids)
        stopped = [outcome.stopped for outcome in outcomes.values() if outcome.stopped]
        asking = {n: m.report.signal for n, m in self._members.items() if m.report.signal and n in outcomes}
        self._ids = {}
        newest = self._job.newest_step()
        leaving = self._machines.elastic and asking and 0 not in asking
        if whole and stopped and all(outcome.code == 0 for outcome in outcomes.values()):
            if leaving:
                for number, name in asking.items():
                    self._let_go(self._members[number], f"leaves on {name}")
                self._history.go_on_from(newest)
                self._enter("gathering", now)
                return
            verdict = describe_saved(stopped[0], newest)
            self._end(verdict.code, verdict.line)
            return
        if whole and not any(outcome.code for outcome in outcomes.values()):
            self._end(0)
            return
        cause = self._cause(outcomes)
        if asking and not leaving:
            name = next(iter(asking.values()))
            verdict = describe_unsaved(name, cause, newest)
            self._end(verdict.code, verdict.line)
            return
        full = any(outcome.full for outcome in outcomes.values())
        verdict = self._history.after_failure(
            cause.text, newest, user=cause.user, full=full, logs=self._job.logs
        )
        if verdict.code is not None:
            self._end(verdict.code, verdict.line)
            return
        self._lines.append(verdict.line)
        self._not_before = now + verdict.pause
        self._enter("gathering", now)

    def _cause(self, outcomes: dict[int, Outcome]) -> Cause:
        """Return the first cause of the failure.

        A lost connection is a consequence of another rank's end, which that rank's machine knows; if none
        does, of a rank
        that hangs: one that was stopped, or has begun the fewest collectives.
        """
        reported = [
            (self._members[number].changed - outcome.cause.age, number, self._of(number, outcome.cause))
            for number, outcome in outcomes.items()
            if outcome.cause
        ]
        causes = [each for each in reported if not each[2].consequence]
        if mistakes := [each for each in causes if each[2].user]:
            causes = mistakes
        else:
            causes += [(each.when, each.machine, Cause(text=each.text)) for each in self._noted]
        stuck = [(number, each) for number, outcome in outcomes.items() for each in outcome.stuck]
        if not causes and stuck:
            number, rank = min(stuck, key=lambda each: (not each[1].halted, each[1].begun or 0))
            return self._of(number, Cause(text=rank.text))
        if not (causes or reported):
            return Cause(text="the ranks have ended, and none says why")
        return min(causes or reported, key=lambda each: each[:2])[2]

    def _of(self, number: int, cause: Cause) -> Cause:
        return cause.model_copy(update={"text": f"{self._members[number].name}: {cause.text}"})


def _patience(member: _Member) -> float:
    """Return the seconds after which a machine counts as silent; no network can keep this one from being
    heard."""
    return DEAD if member.report.machine else HUNG


class _Noted(NamedTuple):
    """What the first machine has noticed of another one."""

    machine: int
    text: str
    when: float
