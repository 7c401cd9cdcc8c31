"""Start what plsc run runs on this machine: the program, its config, its folders, and Paddle's launcher
around it."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from plsc import config
from plsc.apps.supervise import secret
from plsc.apps.supervise.options import Options
from plsc.apps.supervise.postmortem import Failure, Watch, send
from plsc.checkpoint import store
from plsc.distributed import environment, guard, launcher
from plsc.errors import UserError, shown
from plsc.utils import disk
from plsc.utils.files import read_json
from plsc.utils.registry import did_you_mean

_FULL = 1 << 20  # a disk with fewer free bytes counts as full


class Job:
    """The program of one call of plsc run. Reads its config, and refuses what is wrong before anything
    starts.

    Args:
        machine: number of this machine among several; None: the only one.

    Attributes: `cfg`; `folder`, its output_dir; `logs`, the folder of the logs; `ranks` of this machine;
    `chosen`, whether the command itself says whether to resume; `machine_name`, see
    `environment.machine_name`.
    """

    def __init__(self, options: Options, machine: int | None = None):
        number = None if machine is None else str(machine)
        self.machine_name = environment.machine_name(number)
        self._env = {} if number is None else {environment.MACHINE: number}
        self._script, *self._arguments = options.program
        if not os.path.isfile(self._script):
            raise UserError(
                f"plsc run: there is no script {self._script}{did_you_mean(self._script, ['train'])}; after the options, each with "
                "its value, comes train, or a script of yours"
            )
        sys.path.insert(
            0, str(Path(self._script).resolve().parent)
        )  # as for the script: it may define classes
        given, _ = _config_parser().parse_known_args(self._arguments)
        self.cfg = config.load(given.config, given.override)
        if "--stand-in" not in self._arguments:
            self.cfg.check_data()  # before the ranks start: the first of them to end may not be the one with the reason
        self.folder = Path(self.cfg.Global.output_dir)
        self.chosen = any(override.startswith("Global.resume=") for override in given.override)
        self.ranks = options.ranks or 1
        self.logs = options.log_dir or str(self.folder / "log")
        if number is not None:  # the folder may be on a disk that all machines share
            self.logs = str(Path(self.logs) / f"machine-{number}")
        self._options = ["--log_dir", self.logs]
        if options.ranks:
            self._options += ["--nproc_per_node", str(options.ranks)]
        if options.devices:
            self._options += ["--devices", options.devices]

    @property
    def resumes(self) -> bool:
        """Whether the config itself says that the run goes on from a checkpoint."""
        return self.cfg.Global.resume

    @property
    def resumes_newest(self) -> bool:
        """Whether the config itself says that the run goes on from the newest checkpoint."""
        return self.resumes and self.cfg.Global.checkpoint in (None, "newest")

    def start(
        self,
        options: Sequence[str] = (),
        overrides: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> Start:
        """Start the launcher.

        Args:
            options: further ones of the launcher. overrides: further ones of the config.
            env: added to the environment.
        """
        whole = {
            **environment.for_ranks(),
            guard.SUPERVISOR: str(os.getpid()),
            environment.COMMAND: environment.command_line(),
            environment.DEVICE: self.cfg.Global.device,
            **self._env,
            **(env or {}),
        }
        whole.pop(
            secret.NAME, None
        )  # the ranks need not know it, and the launcher writes its environment into a log
        command = [str(launcher.STARTER), *self._options, *options, self._script, *self._arguments]
        if overrides:
            command += ["-o", *overrides]
        return Start(command, whole, self)

    def newest_step(self) -> int | None:
        """Return the step of the run's newest completed checkpoint; no checksum is verified."""
        return store.newest_step(self.folder / "checkpoints")

    def is_unfinished(self, newest: int | None) -> bool:
        """Say whether a run that has not written its results left the newest checkpoint, of this step.

        Else the same command is a new run.
        """
        if newest is None:
            return False
        try:
            results = read_json(self.folder / "results.json")
        except UserError:
            return True
        return not (isinstance(results, dict) and results.get("step") == newest)

    def describe_resume(self, newest: int) -> str:
        """Say in a line that the unfinished run goes on."""
        closed = not list((self.folder / "errors").glob("rank*.alive"))
        if closed:
            return f"INFO resuming the unfinished run from step {newest}"
        return f"WARNING previous run ended without closing; resuming from step {newest}"

    def stamp(self, step: int | None) -> tuple[int, int] | None:
        """Identify a checkpoint among others of the same step; None without one."""
        if step is None:
            return None
        try:
            status = (self.folder / f"checkpoints/step-{step:08d}/manifest.json").stat()
        except FileNotFoundError:  # deleted since
            return None
        return status.st_ino, status.st_mtime_ns

    def is_full(self, text: str) -> bool:
        """Say whether the disk is full, or `text` names that as a cause."""
        texts = [os.strerror(number) for number in disk.FULL]
        return any(each in text for each in texts) or disk.free_bytes(self.folder) < _FULL

    def explain_full_disk(self) -> Failure | None:
        """Return the full disk as a cause; None if it is not full. Ranks cannot record it."""
        free = disk.free_bytes(self.folder)
        return Failure(f"the disk of {self.folder} is full ({free:,} bytes free)") if free < _FULL else None

    def forget_environments(self) -> None:
        """Delete what the launcher has written of its environment."""
        launcher.forget_environments(self.logs)

    def say(self, text: str, logged: bool = True) -> None:
        """Print a line on stderr, and append it to the run's log if that exists and `logged`."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {shown(text)}\n"
        path = self.folder / "train.log"
        with contextlib.suppress(OSError):  # a full disk, or a terminal that was closed (nohup)
            print(line, end="", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError):
            if logged and path.exists():
                with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(line)


class Start:
    """One start of the launcher on this machine; `look` is to be called several times a second while it runs.

    Attributes: `code`, its exit code, None while it runs; `watch`, of its ranks.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], job: Job):
        self.watch = Watch(job.folder / "errors", job.machine_name)
        self.code: int | None = None
        self._job = job
        self._signalled = 0
        with launcher.open_log(job.logs) as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, *command],
                env=env,
                stderr=log,
                start_new_session=True,  # Ctrl-C must reach the ranks through us only, once
                preexec_fn=guard.die_with_parent,  # noqa: PLW1509 (it takes no lock that another thread may hold)
            )

    def look(self, signals: Sequence[int]) -> None:
        """Note who runs, pass on further `signals`, and clear up when the launcher has ended."""
        if self.code is not None:
            return
        code = self._process.poll()
        self.watch.look()
        if code is None:
            for number in signals[self._signalled :]:
                self._pass_on(number)
            return
        self._close(code)

    def kill(self) -> None:
        """Kill the launcher and all ranks at once."""
        if self.code is None:
            send(self._process.pid, signal.SIGKILL)
            self._close(self._process.wait())

    def failure(self) -> Failure:
        """Find the first failure on this machine after the launcher has ended by itself."""
        failed = self.watch.failure(self.code, self._job.logs)
        if failed.rank is not None:
            return failed
        if why := launcher.refusal(self._job.logs, self._log_start):
            return Failure(why, user=True)
        launcher.show_mistakes(self._job.logs, self._log_start, sys.stderr)
        return self._job.explain_full_disk() or failed

    def _close(self, code: int) -> None:
        kill_leftovers()
        launcher.finish_line(self._job.logs)
        self._job.forget_environments()
        self.code = code

    def _pass_on(self, number: int) -> None:
        """Pass a signal on: the first to the ranks, since the launcher would give them only 30 s.

        Before the ranks handle signals it goes to the launcher. A further one goes to both: a second SIGINT
        ends a rank at once.
        """
        first = self._signalled == 0
        self._signalled += 1
        pids = self.watch.pids().values()
        for pid in pids:
            wanted = number if number in guard.STOPPING else signal.SIGTERM
            send(pid, wanted if first else signal.SIGINT)
        if not first or not pids:
            send(self._process.pid, signal.SIGTERM)


def resuming() -> list[str]:
    """Return the overrides of the config with which a start goes on from the newest checkpoint."""
    return ["Global.resume=true", "Global.checkpoint=newest"]


def note_signals(signals: list[int]) -> None:
    """Append the numbers of signals that ask to stop to `signals` from now on; an ignored one stays
    ignored."""
    for number in (*guard.STOPPING, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:  # nohup
            continue
        signal.signal(number, lambda number, frame: signals.append(number))


def kill_leftovers() -> None:
    """Kill ranks that outlive the launcher: the kernel does, except one that has just started."""
    ours = f"{guard.SUPERVISOR}={os.getpid()}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = (folder / "environ").read_bytes()
        except OSError:  # ended, or of another user
            continue
        if ours in environ.split(b"\0"):
            send(int(folder.name), signal.SIGKILL)


def _config_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    config.add_arguments(parser)
    return parser
