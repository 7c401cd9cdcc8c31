"""Machines on one host, to try what happens when one of them fails: each a network namespace with an address
and a host name.

    python -m tests.helpers.cluster trials        kills, stops, and breaks of the network, 30 of them; needs root and iproute2
    python -m tests.helpers.cluster trials --only sigstop --machines 3

Without root the machines are processes that share the loopback interface, and the network cannot be cut.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from plsc.checkpoint.store import newest_step
from tests.helpers.launch import ROOT
from tests.helpers.ports import free_port
from tests.helpers.tiny_runs import TINY, assert_equal_runs
from tests.helpers.warm import Program, Warm, processes

RUN, TRAIN = ROOT / "tools/run.py", ROOT / "tools/train.py"
STEPS, EVERY = 60, 5
PORT = 18470


_networks = itertools.count()


class Cluster:
    """Machines 0, 1, ... that share the folder `folder`; a context that ends them.

    namespaces: each has a network of its own; needs root. warm: starts them by forks; None: as a user does.
    """

    def __init__(
        self,
        folder: Path,
        machines: int,
        ranks: int = 1,
        namespaces: bool = True,
        warm: Warm | None = None,
    ):
        self.folder = folder
        self._warm = warm
        self.machines = machines
        self.ranks = ranks
        self.port = PORT if namespaces else free_port()
        self._namespaces = namespaces
        self._key = f"p{os.getpid() % 10000}x{next(_networks)}"  # names of links have 15 characters at most
        self._processes: dict[int, subprocess.Popen | Program] = {}

    def __enter__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._namespaces:
            _ip(f"link add {self._key}b type bridge")
            _ip(f"link set {self._key}b up")
            for number in range(self.machines):
                space = f"{self._key}n{number}"
                _ip(f"netns add {space}")
                _ip(f"link add {self._key}v{number} type veth peer name eth0 netns {space}")
                _ip(f"link set {self._key}v{number} master {self._key}b up")
                _ip(f"-n {space} addr add 10.77.0.{number + 1}/24 dev eth0")
                _ip(f"-n {space} link set eth0 up")
                _ip(f"-n {space} link set lo up")
        return self

    def __exit__(self, *_):
        for process in self._processes.values():
            for number in (signal.SIGCONT, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)
        for process in self._processes.values():
            process.wait(30)
        if self._namespaces:
            time.sleep(0.2)
            for number in range(self.machines):
                subprocess.run(["ip", "link", "del", f"{self._key}v{number}"], check=False)
                subprocess.run(["ip", "netns", "del", f"{self._key}n{number}"], check=False)
            subprocess.run(["ip", "link", "del", f"{self._key}b"], check=False)

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def start(self, number: int, *options: str, overrides: Sequence[str] = ()) -> None:
        """Start plsc run on a machine; what it says is added to folder/said.NUMBER."""
        home = self.folder / f"host{number}"
        home.mkdir(exist_ok=True)
        host = "10.77.0.1" if self._namespaces else "127.0.0.1"
        nodes = () if "--nnodes" in options else ("--nnodes", str(self.machines))
        command = [
            str(RUN),
            *nodes,
            *options,
            *("--rank", str(number), "--master", f"{host}:{self.port}", "--nproc_per_node", str(self.ranks)),
            *(
                str(TRAIN),
                "-c",
                str(TINY),
                "-o",
                "Global.output_dir=../out",
                f"Global.max_steps={STEPS}",
            ),
            *(f"Checkpoint.every_steps={EVERY}", *overrides),
        ]
        if self._warm:
            self._keep_said(number)
            self._processes[number] = self._warm.start(command, home)
            return
        command = [sys.executable, *command]
        if self._namespaces:
            named = ["sh", "-c", 'hostname "$0"; exec "$@"', f"host{number}"]
            command = ["ip", "netns", "exec", f"{self._key}n{number}", "unshare", "--uts", *named, *command]
        with open(self.folder / f"said.{number}", "ab") as said:
            self._processes[number] = subprocess.Popen(
                command,
                cwd=home,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )

    def start_all(self, *options: str, **more) -> None:
        for number in range(self.machines):
            self.start(number, *options, **more)

    def restart(self, number: int, after: float = 0, overrides: Sequence[str] = ()) -> None:
        """Kill plsc run on a machine, and start it again after so many seconds."""
        self.signal(number, "supervisor", signal.SIGKILL)
        self.wait(of=[number])
        time.sleep(after)
        self.start(number, overrides=overrides)

    def wait(self, timeout: float = 180, of: Sequence[int] | None = None) -> list[int]:
        """Exit codes of plsc run on these machines, all by default."""
        end = time.monotonic() + timeout
        numbers = self._processes if of is None else of
        return [self._processes[number].wait(max(0.1, end - time.monotonic())) for number in numbers]

    def running(self, number: int = 0) -> bool:
        return self._processes[number].poll() is None

    def said(self, number: int) -> list[str]:
        """Lines of plsc run on a machine, without the time."""
        if self._warm:
            self._keep_said(number)
        text = (self.folder / f"said.{number}").read_text(errors="replace")
        lines = [re.sub(r"^[-\d]+ [:\d]+ ", "", line) for line in text.splitlines()]
        return [line for line in lines if re.match("INFO|WARNING|ERROR", line)]

    def all_said(self) -> str:
        """All that plsc run and the ranks of the last start have said, for the message of a failed test."""
        said = [f"--- machine {number}\n" + "\n".join(self.said(number)) for number in range(self.machines)]
        logs = sorted(self.out.glob("log/machine-*/workerlog.*"))
        return "\n".join(
            [*said, *(f"--- {path}\n{path.read_text(errors='replace')[-3000:]}" for path in logs)]
        )

    def _keep_said(self, number: int) -> None:
        """Add what a forked machine has said to its file, which the next start would delete."""
        said = self.folder / f"host{number}/stderr"
        if said.exists():
            with open(self.folder / f"said.{number}", "ab") as file:
                file.write(said.read_bytes())
            said.write_bytes(b"")

    def signal(self, number: int, what: str, which: int) -> None:
        """Send a signal to the supervisor, the launcher or the first rank of a machine."""
        supervisor = self._processes[number].pid
        pid = supervisor
        if what != "supervisor":
            pid = _children(supervisor)[0]
        if what == "rank":
            pid = _children(pid)[0]
        os.kill(pid, which)

    def cut(self, number: int) -> None:
        _ip(f"link set {self._key}v{number} down")

    def heal(self, number: int) -> None:
        _ip(f"link set {self._key}v{number} up")

    def step(self, rank: int = 0) -> int:
        """Steps that a rank of the present start has done; -1 if it does not run."""
        try:
            record = json.loads((self.out / f"errors/rank{rank}.alive").read_bytes())
        except (OSError, ValueError):
            return -1
        return record["step"]

    def wait_for_step(self, step: int, timeout: float = 120) -> None:
        end = time.monotonic() + timeout
        while self.step() < step:
            assert time.monotonic() < end, "no step"
            assert self.running(), self.said(0)
            time.sleep(0.005)

    def wait_for_line(self, number: int, pattern: str, timeout: float = 120) -> None:
        end = time.monotonic() + timeout
        while not any(re.search(pattern, line) for line in self.said(number)):
            assert time.monotonic() < end, self.said(number)
            time.sleep(0.05)

    def left(self) -> list[int]:
        """Processes that are at work in the folder."""
        return processes(self.folder.resolve())


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# -- trials
# ---------------------------------------------------------------------------------------------------------------------


class Trial:
    """A fault on running machines: what is done, and how it has to end."""

    def __init__(
        self, name: str, act: Callable[[Cluster], None], options: Sequence[str] = (), again: bool = False
    ):
        self.name = name
        self.act = act
        self.options = options
        self.again = again  # the run ends with 1, and the same command on all machines goes on


def kill(what: str, number: int) -> Trial:
    return Trial(f"kill -9 of machine {number}'s {what}", lambda c: c.signal(number, what, signal.SIGKILL))


def restarted(number: int, after: float) -> Trial:
    return Trial(
        f"kill -9 of machine {number}'s supervisor, started again after {after:g} s",
        lambda c: c.restart(number, after),
    )


def lost(number: int) -> Trial:
    def act(c: Cluster) -> None:
        c.signal(number, "supervisor", signal.SIGKILL)

    return Trial(f"kill -9 of machine {number}'s supervisor, for ever", act, ["--wait", "5"], again=True)


def stopped(what: str, number: int, seconds: float) -> Trial:
    def act(c: Cluster) -> None:
        c.signal(number, what, signal.SIGSTOP)
        if seconds:
            time.sleep(seconds)
            c.signal(number, what, signal.SIGCONT)

    how = f" for {seconds:g} s" if seconds else ""
    return Trial(f"SIGSTOP of machine {number}'s {what}{how}", act)


def cut(number: int, seconds: float) -> Trial:
    def act(c: Cluster) -> None:
        c.cut(number)
        if seconds:
            time.sleep(seconds)
            c.heal(number)

    if seconds:
        return Trial(f"machine {number} without network for {seconds:g} s", act)
    return Trial(f"machine {number} without network for ever", act, ["--wait", "5"], again=True)


def trials(machines: int) -> Iterator[Trial]:
    """The trials with so many machines."""
    last = machines - 1
    for number in range(machines):
        yield kill("rank", number)
        yield kill("launcher", number)
    yield restarted(last, 0)
    yield restarted(last, 12)
    yield restarted(0, 1)
    yield lost(last)
    yield lost(0)
    yield stopped("rank", last, 0)
    yield stopped("supervisor", last, 15)
    yield stopped("supervisor", 0, 15)
    yield cut(last, 5)
    yield cut(0, 5)
    yield cut(last, 0)


def run_trial(folder: Path, trial: Trial, expected: Path, machines: int, ranks: int) -> float | None:
    """Run a trial; return the seconds from the fault to the next new step, None if the run ended by it."""
    with Cluster(folder, machines, ranks) as cluster:
        cluster.start_all(*trial.options)
        cluster.wait_for_step(22)
        newest = newest_step(cluster.out / "checkpoints")
        when = time.monotonic()
        trial.act(cluster)
        seconds = None
        if trial.again:
            codes = cluster.wait(120)
            assert set(codes) <= {1, -signal.SIGKILL} and 1 in codes, (codes, cluster.said(0))
            assert not cluster.left()
            for number in range(machines):
                subprocess.run(["ip", "link", "set", f"{cluster._key}v{number}", "up"], check=True)
            cluster.start_all()
        else:
            while cluster.running() and not (cluster.step() > newest + 1 and _has_begun_since(cluster, when)):
                time.sleep(0.01)
            seconds = time.monotonic() - when
        codes = cluster.wait(240)
        assert codes == [0] * machines, (codes, [cluster.said(n) for n in range(machines)])
        assert not cluster.left()
        assert_equal_runs(cluster.out, expected)
        lines = [line for line in cluster.said(0) if re.search("restart|giving up", line)]
        for number in range(1, machines):  # all say the same, each of it once
            restarts = [line for line in cluster.said(number) if "restart" in line]
            assert restarts == [line for line in lines if "restart" in line][-len(restarts) :] or not restarts
        print(f"{trial.name}: {'; '.join(lines) or 'no restart'}", flush=True)
        return seconds if lines else None


def _has_begun_since(cluster: Cluster, when: float) -> bool:
    path = cluster.out / "errors/rank0.alive"
    try:
        pid = json.loads(path.read_bytes())["pid"]
        started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError):
        return False
    return started / os.sysconf("SC_CLK_TCK") > when


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["trials"])
    parser.add_argument("--only", default="")
    parser.add_argument("--machines", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--ranks", type=int, default=1)
    args = parser.parse_args()
    done, failed, seconds = 0, [], []
    with tempfile.TemporaryDirectory() as root:
        for machines in args.machines:
            with Cluster(Path(root) / f"whole-{machines}", machines, args.ranks) as whole:
                whole.start_all()
                assert whole.wait() == [0] * machines, whole.said(0)
            for trial in trials(machines):
                if args.only not in trial.name:
                    continue
                done += 1
                folder = Path(root) / f"trial-{done}"
                try:
                    took = run_trial(folder, trial, whole.out, machines, args.ranks)
                    seconds += [took] if took else []
                except Exception as error:  # noqa: BLE001 (the next trial is independent)
                    failed.append(trial.name)
                    print(
                        f"FAILED {machines} machines, {trial.name}: {type(error).__name__}: {error}",
                        flush=True,
                    )
                    for path in sorted(folder.glob("said.*")):
                        print(path.name, path.read_text()[-1500:], sep="\n", flush=True)
    print(f"{done - len(failed)} of {done} trials ended as they have to", *failed, sep="\n  ")
    if seconds:
        print(
            f"from the fault to the next step: median {statistics.median(seconds):.1f} s, at most {max(seconds):.1f} s"
        )
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
