"""Find the rank that failed first, and why, from the files of plsc.distributed.guard in output_dir/errors.

Paddle's launcher names the failed rank of the lowest number, and its exit code may be that of a rank which it
ended itself. Here the earliest failure counts: a rank writes its exception with the time; one without an
exception was killed when it was last seen. When a rank hangs, its peers fail first, by Gloo's 30 s; the one
that did not fail is the one that hung.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from plsc.distributed import calls
from plsc.distributed.environment import machine_name
from plsc.errors import UserError
from plsc.utils.files import read_json

_LOST_PEER = re.compile(
    r"gloo|nccl|tcp_utils|TCP (send|receive)|only \d+ of \d+ ranks|TCPStore|connection (reset|closed) by peer",
    re.IGNORECASE,
)
_CRASH = re.compile(r"^Fatal Python error: (.*)", re.MULTILINE)  # of faulthandler
_UNSEEN = 0.5  # seconds: a process is visible while it ends; the launcher kills others 0.6 s after a failure or later
_TIMEOUT = re.compile(r"^Timeout \((?:(\d+):(\d+):(\d+))", re.MULTILINE)  # of faulthandler
_COLLECTIVE = re.compile(
    r"paddle/distributed/|plsc/distributed/collectives\.py"
)  # in a stack: it waits for other ranks


def _lost_peer(error: dict[str, Any]) -> bool:
    """Say whether a recorded exception is of a collective that another rank did not come to.

    Paddle says the same of all that a plug-in refuses: there the line that raised it tells.
    """
    of_plug_in = "CustomDevice error" in error["message"] and _COLLECTIVE.search(error.get("where", ""))
    return bool(of_plug_in or _LOST_PEER.search(error["message"]))


@dataclass(frozen=True)
class Failure:
    """The first failure.

    `user`: a mistake of the user, so a restart would not help; `rank`: None if unknown; `time`: when
    (time.time), None if unknown; `consequence`: it is about a lost connection, so most likely of the end of
    another rank.
    """

    text: str
    user: bool = False
    rank: int | None = None
    time: float | None = None
    consequence: bool = False


@dataclass(frozen=True)
class Waiting:
    """A rank that ran when its machine was ordered to stop. `begun`: collectives, None if unknown; `halted`:
    by SIGSTOP."""

    rank: int
    text: str
    begun: int | None
    halted: bool


class Watch:
    """Watches the ranks of one start on this machine; call `look` several times a second, then `failure`.

    Args:
        folder: output_dir/errors; files of earlier starts on this machine are deleted.
        machine: its name in the ranks' files, see `machine_name`.
    """

    def __init__(self, folder: Path, machine: str | None = None):
        self._folder = folder
        self._machine = machine or machine_name()
        self._asked = False
        self._ended: dict[int, str] = {}  # rank -> how a second signal ended it: not a cause
        self._seen: dict[int, float] = {}  # rank -> when it was last seen running
        # rank -> its record, of a process that was stopped (SIGSTOP)
        self._halted: dict[int, dict[str, Any]] = {}
        for kind in ("alive", "json"):
            for rank in self._records(kind):
                for suffix in ("alive", "json", "trace", "reserved", "calls"):
                    (folder / f"rank{rank}.{suffix}").unlink(missing_ok=True)
        # rank -> the counts of kills for want of memory in its memory group; a process that ends may be seen
        # in the root's group.
        self._counters: dict[int, set[Path]] = {}
        self._oom_kills: dict[
            Path, int
        ] = {}  # such a file -> its count when a rank was first seen in that group

    def _records(self, kind: str) -> dict[int, dict[str, Any]]:
        """Read rank -> the content of its file and its time "since", of ranks on this machine.

        Files that are being written, or that no rank has written, are left out.
        """
        records = {}
        for path in self._folder.glob(f"rank*.{kind}"):
            rank = re.fullmatch(r"rank(\d{1,9})", path.stem, re.ASCII)
            try:
                written, record = path.stat().st_mtime, read_json(path)
            except (OSError, UserError):
                continue
            if rank and _is_record(kind, record) and record["host"] == self._machine:
                records[int(rank[1])] = {**record, "since": written}
        return records

    def pids(self) -> dict[int, int]:
        """Return rank -> process of the ranks that run and handle signals."""
        return {
            rank: record["pid"] for rank, record in self._records("alive").items() if _runs(record["pid"])
        }

    def look(self) -> None:
        """Note which ranks run.

        After a failure ask the others for their stacks; a stopped one must continue for that.
        """
        pids = self.pids()
        self._seen.update(dict.fromkeys(pids, time.time()))
        for rank, pid in pids.items():
            if counter := _oom_counter(pid):
                self._counters.setdefault(rank, set()).add(counter)
                self._oom_kills.setdefault(counter, _oom_kills(counter))
        if any("type" in record for record in self._records("json").values()):
            self.ask_for_stacks()

    def ask_for_stacks(self) -> None:
        """Have the ranks that run write where they are, once; a stopped one must continue for that."""
        if self._asked:
            return
        self._asked = True
        records = self._records("alive")
        for rank, pid in self.pids().items():
            if _state(pid) == "T":
                self._halted[rank] = records[rank]
            send(pid, signal.SIGUSR1)
            send(pid, signal.SIGCONT)

    def waiting(self) -> list[Waiting]:
        """Describe the ranks that run, after `ask_for_stacks` and a moment in which they answer."""
        return [
            Waiting(
                rank,
                self._of_stuck(rank, time.time() - record["since"], record["step"] + 1),
                calls.read(self._folder / f"rank{rank}.calls"),
                rank in self._halted,
            )
            for rank, record in self._records("alive").items()
            if _runs(record["pid"])
        ]

    def so_far(self) -> Failure | None:
        """Find the first failure while ranks may run; None if none has failed."""
        raised = {r: e for r, e in self._records("json").items() if "type" in e and "ended_by" not in e}
        alive = self._records("alive")
        vanished = {r: a for r, a in alive.items() if r not in raised and not _runs(a["pid"])}
        if not (raised or vanished):
            return None
        times = {rank: record["time"] for rank, record in raised.items()}
        times.update({rank: self._seen.get(rank, time.time()) for rank in vanished})
        first = self._first(times, raised, vanished)
        if first in raised:
            return self._prefer_halted(self._of_raised(first, raised))
        return self._prefer_halted(self._of_killed(first, vanished[first]["step"] + 1, times[first]))

    def _prefer_halted(self, failed: Failure) -> Failure:
        """Describe a rank that was stopped in place of one that lost it, or was aborted then."""
        if not (self._halted and failed.consequence):
            return failed
        return self._of_waited_for(self._halted, failed.time)

    def stopped(self) -> str | None:
        """Return the signal on which the ranks have saved and stopped, or None."""
        names = [record["stopped"] for record in self._records("json").values() if "stopped" in record]
        return names[0] if names else None

    def failure(self, code: int, logs: str) -> Failure:
        """Find the first failure after the launcher has ended with `code`; `logs` is the folder of its
        logs."""
        raised = {rank: r for rank, r in self._records("json").items() if "type" in r}
        self._ended = {rank: r["message"] for rank, r in raised.items() if "ended_by" in r}
        raised = {rank: r for rank, r in raised.items() if rank not in self._ended}
        vanished = {rank: r for rank, r in self._records("alive").items() if rank not in raised}
        if code < 0:
            return Failure(f"the launcher was killed (signal {-code})")
        times = {rank: record["time"] for rank, record in raised.items()}
        times.update({rank: self._seen.get(rank, time.time()) for rank in vanished})
        if not times:
            return Failure(
                f"the ranks ended with exit code {code} before the training began, see {logs}", code == 2
            )
        first = self._first(times, raised, vanished)
        if first in vanished:
            cause = min(self._waited_for(first, vanished), key=times.__getitem__)
            step = vanished[cause]["step"] + 1
            timed_out = _TIMEOUT.search(self._trace(cause))
            waits = bool(timed_out and _COLLECTIVE.search(_main_thread(self._trace(cause))))
            if cause == first or timed_out:
                failed = self._of_killed(cause, step, times[cause])
                return self._prefer_halted(replace(failed, consequence=failed.consequence or waits))
            text = self._of_stuck(cause, _seconds(self._trace(first)), step)
            return Failure(text, rank=cause, time=times[cause], consequence=waits)
        error = raised[first]
        waited_for = self._halted or vanished
        if waited_for and _lost_peer(error):  # the others waited for it until the launcher killed it
            return self._of_waited_for(waited_for, error["time"])
        return self._of_raised(first, raised)

    def _of_waited_for(self, ranks: dict[int, Any], when: float) -> Failure:
        """Describe the one of these ranks that the others have waited for until they failed."""
        stuck = min(self._behind(ranks), key=lambda rank: (ranks[rank]["step"], self._seen.get(rank, 0)))
        record = ranks[stuck]
        text = self._of_stuck(stuck, when - record["since"], record["step"] + 1)
        # On several machines the rank that all wait for may be elsewhere, unless one here was stopped.
        return Failure(text, rank=stuck, time=when, consequence=not self._halted)

    def _of_raised(self, rank: int, raised: dict[int, Any]) -> Failure:
        """Describe the exception that a rank has recorded."""
        error = raised[rank]
        text = f"{error['type']}: {error['message']}" if not error["user"] else error["message"]
        if error["type"] == "MemoryError":
            text += "; lower DataLoader.Train.batch_size"
        lost = _lost_peer(error) and not error["user"]
        text = f"rank {rank} failed at step {error['step'] + 1}: {text}"
        return Failure(text, error["user"], rank, error["time"], lost)

    def _first(self, times: dict[int, float], raised: dict[int, Any], vanished: dict[int, Any]) -> int:
        """Return the earliest of the ranks that failed by themselves, or else the earliest of all.

        A rank that lost its peer, or was aborted by the library that lost it, shows a consequence, possibly
        first. One that was killed is a cause if it was not seen after the first failure of another: later the
        launcher may have killed it.
        """
        times = {rank: self._crash_time(rank) or when for rank, when in times.items()}
        causes = [rank for rank in raised if not _lost_peer(raised[rank])]
        for rank in vanished:
            trace = self._trace(rank)
            crash = _CRASH.search(trace)
            earlier = [when for other, when in times.items() if other != rank]
            killed = not crash and not _TIMEOUT.search(trace) and rank not in self._ended
            if crash and crash[1] != "Aborted" or killed and times[rank] <= min(earlier, default=0) + _UNSEEN:
                causes.append(rank)
        others = [rank for rank in times if rank not in self._ended]
        return min(causes or others or times, key=times.__getitem__)

    def _crash_time(self, rank: int) -> float | None:
        """Return the time at which faulthandler recorded a crash; None without one."""
        if not _CRASH.search(self._trace(rank)):
            return None
        return (self._folder / f"rank{rank}.trace").stat().st_mtime

    def _waited_for(self, first: int, vanished: dict[int, Any]) -> list[int]:
        """Return the ranks that the others waited for, else [first].

        The watchdogs of ranks in a collective end them at the same time as that of the rank they wait for.
        That has begun fewer collectives; where all have begun as many, it is one whose stack is not in a
        collective.
        """
        if not _TIMEOUT.search(self._trace(first)):
            return [first]
        behind = self._behind(vanished)
        if len(behind) < len(vanished):
            return behind
        stacks = {
            rank: _main_thread(self._trace(rank)) for rank in vanished if _TIMEOUT.search(self._trace(rank))
        }
        at_work = [rank for rank, stack in stacks.items() if not _COLLECTIVE.search(stack)]
        return at_work if first in stacks and at_work else [first]

    def _behind(self, ranks: Collection[int]) -> list[int]:
        """Return those that have begun the fewest collectives; all where that is not known of each."""
        begun = {rank: calls.read(self._folder / f"rank{rank}.calls") for rank in ranks}
        if None in begun.values():
            return list(ranks)
        return [rank for rank in ranks if begun[rank] == min(begun.values())]

    def _of_killed(self, rank: int, step: int, when: float) -> Failure:
        """Describe a rank that has ended without an exception; Gloo and NCCL abort those that have lost
        another."""
        crash = _CRASH.search(self._trace(rank))
        aborted = bool(crash) and crash[1] == "Aborted"
        return Failure(self._of_vanished(rank, step), rank=rank, time=when, consequence=aborted)

    def _of_vanished(self, rank: int, step: int) -> str:
        trace = self._trace(rank)
        if _TIMEOUT.search(trace):
            return self._of_stuck(rank, _seconds(trace), step)
        if crash := _CRASH.search(trace):
            return f"rank {rank} crashed at step {step} ({crash[1]}) in {_place(trace)}"
        if rank in self._ended:
            return f"rank {rank} {self._ended[rank]}"
        starved = any(
            _oom_kills(counter) > self._oom_kills[counter] for counter in self._counters.get(rank, ())
        )
        memory = ": the machine is probably out of memory; lower DataLoader.Train.batch_size"
        return f"rank {rank} was killed (signal 9) at step {step}{memory if starved else ''}"

    def _of_stuck(self, rank: int, seconds: float, step: int) -> str:
        place = _place(self._trace(rank)) or "a place unknown (it did not answer)"
        halted = " (the process was stopped, by SIGSTOP)" if rank in self._halted else ""
        return f"no progress for {seconds:.0f} s: rank {rank} is at step {step} in {place}{halted}"

    def _trace(self, rank: int) -> str:
        path = self._folder / f"rank{rank}.trace"
        return path.read_text(errors="replace") if path.exists() else ""


def _is_record(kind: str, record: Any) -> bool:
    """Return whether a record has all fields of its kind, so that a rank may have written it."""
    fields = {"host": str, "step": int}
    if kind == "alive":
        fields["pid"] = int
    elif isinstance(record, dict) and "stopped" in record:
        fields["stopped"] = str
    else:
        fields.update({"time": (int, float), "type": str, "message": str, "user": bool})
    return isinstance(record, dict) and all(
        isinstance(record.get(name), type_) for name, type_ in fields.items()
    )


def _seconds(trace: str) -> int:
    """Return after how many seconds a rank's watchdog has ended it."""
    hours, minutes, seconds = map(int, _TIMEOUT.search(trace).groups())
    return 3600 * hours + 60 * minutes + seconds


def _main_thread(trace: str) -> str:
    """Return the stack of the main thread, which faulthandler writes last, innermost frame first."""
    return re.split(r"^(?:Current t|T)hread .*$", trace, flags=re.MULTILINE)[-1]


def _place(trace: str) -> str:
    """Return file:line of the main thread."""
    frame = re.search(r'File "(.*?)", line (\d+)', _main_thread(trace))
    return f"{frame[1]}:{frame[2]}" if frame else ""


def _runs(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    return _state(pid) not in "ZX"


def _state(pid: int) -> str:
    """Return the state of a process as in `ps`: T stopped, Z zombie; X: no process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _oom_counter(pid: int, proc: Path = Path("/proc")) -> Path | None:
    """Return the file with the kills for want of memory in the group of a process, cgroup v1 or v2; None
    without one.

    /proc/vmstat counts those of the whole machine, and memory.events those of the groups inside the group,
    too.
    """
    try:
        groups = [line.split(":", 2) for line in (proc / str(pid) / "cgroup").read_text().splitlines()]
        mounts = (proc / "self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    for mount in mounts:
        (_, _, _, root, point, *_), (kind, *_, options) = (half.split() for half in mount.rsplit(" - ", 1))
        for _, controllers, path in groups:
            folder, names = Path(point, os.path.relpath(path, root)), []
            if kind == "cgroup" and "memory" in controllers.split(",") and "memory" in options.split(","):
                names = ["memory.oom_control"]
            elif kind == "cgroup2" and not controllers:
                names = ["memory.events.local", "memory.events"]  # the first since Linux 5.3
            for name in names:
                if (folder / name).exists():
                    return folder / name
    return None


def _oom_kills(counter: Path) -> int:
    """Return how many processes of a group the kernel has killed for want of memory; 0 if unknown."""
    try:
        match = re.search(r"^oom_kill (\d+)$", counter.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1]) if match else 0


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended, to its main thread if the C library can.

    In a stopped process the main thread then handles the signal before it continues.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "tgkill"):  # glibc before 2.30
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    elif libc.tgkill(pid, pid, int(number)) and ctypes.get_errno() != errno.ESRCH:
        raise OSError(ctypes.get_errno(), f"signal {number} to process {pid}")
