"""Run Paddle's launcher, restart it after failures, and report their causes: `plsc-run`.

    plsc-run --nproc_per_node 2 [--max_failures 3] [options of paddle.distributed.launch] tools/train.py -c
    configs/ -o ...

It reads the config for the output folder, locks that, and starts Paddle's launcher, whose own messages go to
launcher.log beside the ranks' logs. After a failure it starts again with Global.resume=true, but not after a
mistake of the user (exit code 2) or R failures without a new checkpoint between them. SIGTERM and SIGINT go
to the ranks, which save and stop. Imports no Paddle.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from plsc import config
from plsc.cli.commands.run.postmortem import Failure, Watch, send
from plsc.distributed import environment, guard, launcher, lock, paddle_launch
from plsc.errors import UserError, shown
from plsc.utils import disk

_POLL = 0.1  # seconds
_PAUSE = 1.0  # before a restart
_PAUSE_FULL = 60.0  # before the first restart on a full disk, twice that before the second, ...
_FULL = 1 << 20  # a disk with fewer free bytes counts as full
_USAGE = "plsc-run --nproc_per_node N [--max_failures R] [launcher options] tools/train.py -c ... -o ..."


class Supervisor:
    """One call of plsc-run.

    Args:
        options: of paddle.distributed.launch; every one of them takes a value.
        program: the script and its arguments, among them -c and -o.
        max_failures: end after so many in a row without a new checkpoint.
    """

    def __init__(self, options: Sequence[str], program: Sequence[str], max_failures: int):
        self._script, *self._arguments = program
        if not os.path.isfile(self._script):
            raise UserError(
                f"plsc-run: there is no script {self._script}; after the launcher's options, each with its value, comes one, such as "
                "tools/train.py"
            )
        sys.path.insert(
            0, str(Path(self._script).resolve().parent)
        )  # as for the script: it may define classes
        given, _ = _config_parser().parse_known_args(self._arguments)
        cfg = config.load(given.config, given.override)
        cfg.check_data()  # before the ranks start: the first of them to end may not be the one with the reason
        self.folder = Path(cfg.Global.output_dir)
        self._chosen = any(override.startswith("Global.resume=") for override in given.override)
        self._resumes = cfg.Global.resume
        self._options, self._max_failures = list(options), max_failures
        chosen = _value(options, "--devices") or _value(options, "--gpus")
        # Else the launcher would look for a GPU for each rank.
        self._hides_gpus = cfg.Global.device == "cpu" and not chosen
        self._logs = _value(options, "--log_dir")
        if self._logs is None:
            self._logs = str(self.folder / "log")
            self._options += ["--log_dir", self._logs]
        self._signals: list[int] = []
        self._launcher: subprocess.Popen | None = None
        self._log_start = 0  # bytes in the launcher's log
        self._paused = False

    def run(self) -> int:
        """Run; return 0: done, 130 or 143: stopped on SIGINT or SIGTERM, 1: given up, 2: user's mistake."""
        for number in (*guard.STOPPING, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_IGN:  # nohup
                continue
            signal.signal(number, lambda number, frame: self._signals.append(number))
        # Several nodes have one folder, and each has a supervisor: there rank 0 itself takes the lock.
        alone = _value(self._options, "--nnodes") in (None, "1")
        held = lock.hold(self.folder) if alone else None
        try:
            return self._run(alone)
        finally:
            if held:
                held.close()

    def _run(self, locked: bool) -> int:
        failures = 0
        restarts = 0
        best = newest_step(self.folder)
        resume = best is not None and not self._chosen and not self._finished(best)
        # A start that fails early leaves the checkpoints of a former run, from which a new one must not resume.
        others = None if resume or self._resumes else _stamp(self.folder, best)
        if resume:
            closed = not list((self.folder / "errors").glob("rank*.alive"))
            how = (
                "INFO resuming the unfinished run"
                if closed
                else "WARNING previous run ended without closing; resuming"
            )
            self._say(f"{how} from step {best}")
        while True:
            watch = Watch(self.folder / "errors")
            code = self._start(watch, resume, locked)
            if self._signals or watch.stopped():
                return self._ended_on_request(watch)
            if code == 0:
                return 0
            failed, newest = self._failure(watch, code), newest_step(self.folder)
            if others and others == _stamp(self.folder, newest):
                best = newest = None
            if failed.user:
                self._say(f"ERROR {failed.text}; not restarted, the logs are in {self._logs}")
                return 2
            progress = newest is not None and (best is None or newest > best)
            failures, best = (0 if progress else failures + 1), (newest if progress else best)
            if failures >= self._max_failures:
                count = f"{failures} failure{'s' if failures > 1 else ''} without a new checkpoint"
                self._say(f"ERROR {failed.text}; giving up after {count}, the logs are in {self._logs}")
                return 1
            restarts, resume = restarts + 1, newest is not None
            where = f"step {newest}" if resume else "the beginning"
            self._say(f"WARNING {failed.text}; restart {restarts} from {where}")
            self._paused = True
            self._pause(_PAUSE_FULL * max(1, failures) if self._full(failed) else _PAUSE)
            if self._signals:
                return self._ended_on_request(watch)

    def _failure(self, watch: Watch, code: int) -> Failure:
        """Find the first failure; with a full disk the ranks cannot record it."""
        failed = watch.failure(code, self._logs)
        if failed.rank is not None:
            return failed
        if why := launcher.refusal(self._logs, self._log_start):
            return Failure(why, user=True)
        launcher.show_mistakes(self._logs, self._log_start, sys.stderr)
        free = disk.free_bytes(self.folder)
        return Failure(f"the disk of {self.folder} is full ({free:,} bytes free)") if free < _FULL else failed

    def _full(self, failed: Failure) -> bool:
        texts = [os.strerror(number) for number in disk.FULL]
        return any(text in failed.text for text in texts) or disk.free_bytes(self.folder) < _FULL

    def _pause(self, seconds: float) -> None:
        """Wait until a signal or the end of the time."""
        end = time.monotonic() + seconds
        while not self._signals and time.monotonic() < end:
            time.sleep(min(_POLL, seconds))

    def _finished(self, newest: int) -> bool:
        """Return whether results.json is of the newest checkpoint: then the same command is a new run."""
        try:
            results = json.loads((self.folder / "results.json").read_bytes())
        except (OSError, ValueError, RecursionError):
            return False
        return isinstance(results, dict) and results.get("step") == newest

    def _ended_on_request(self, watch: Watch) -> int:
        name = watch.stopped() or signal.Signals(self._signals[0]).name
        step = newest_step(self.folder)
        if watch.stopped():
            self._say(f"INFO stopped on {name} at step {step}; resume with the same command")
            return guard.exit_code(signal.Signals[name])
        return self._ended_otherwise(watch, name, step)

    def _ended_otherwise(self, watch: Watch, name: str, step: int | None) -> int:
        """Return the exit code after a request to stop if no rank has recorded that it saved."""
        if self._launcher.returncode == 0:
            return 0  # the run was at its end
        if self._paused:
            self._say(f"INFO stopped on {name} before a restart; the same command goes on")
            return guard.exit_code(signal.Signals[name])
        failed = watch.failure(abs(self._launcher.returncode), self._logs)
        if failed.rank is None:
            self._say(f"INFO stopped on {name} before the training began; nothing is lost")
            return guard.exit_code(signal.Signals[name])
        since = "" if step is None else f"; the same command resumes from step {step}"
        self._say(f"ERROR not saved on {name}: {failed.text}{since}")
        return 2 if failed.user else 1

    def _start(self, watch: Watch, resume: bool, locked: bool) -> int:
        """Start the launcher, pass signals on, and wait for all its processes; return its exit code."""
        again = ["-o", "Global.resume=true", "Global.checkpoint=newest"] if resume else []
        env = {**environment.for_ranks(), guard.SUPERVISOR: str(os.getpid())}
        if locked:
            env[guard.LOCKED] = str(self.folder.resolve())
        if self._hides_gpus:
            ranks = _value(self._options, "--nproc_per_node") or "1"
            env["CUDA_VISIBLE_DEVICES"] = paddle_launch.hidden(int(ranks) if ranks.isdigit() else 1)
        command = [str(launcher.STARTER), *self._options, self._script, *self._arguments, *again]
        passed = 0
        self._paused = False
        with launcher.open_log(self._logs) as log:
            self._log_start = log.tell()
            self._launcher = subprocess.Popen(
                [sys.executable, *command],
                env=env,
                stderr=log,
                start_new_session=True,  # Ctrl-C must reach the ranks through us only, once
                preexec_fn=guard.die_with_parent,  # noqa: PLW1509 (this process has one thread)
            )
        while self._launcher.poll() is None:
            watch.look()
            for number in self._signals[passed:]:
                self._pass_on(number, watch, first=passed == 0)
                passed += 1
            time.sleep(_POLL)
        watch.look()
        _kill_leftovers()
        self._forget_environments()
        return self._launcher.returncode

    def _forget_environments(self) -> None:
        """Delete the launcher's JOB.abcdef.log of each start, which contains its environment only."""
        job = _value(self._options, "--job_id") or "default"
        for path in Path(self._logs).glob(f"{job}.{6 * '[a-z]'}.log"):
            path.unlink(missing_ok=True)

    def _pass_on(self, number: int, watch: Watch, first: bool) -> None:
        """Pass a signal on: the first to the ranks, since the launcher would give them only 30 s.

        Before the ranks handle signals it goes to the launcher. A further one goes to both: a second SIGINT
        ends a rank at once.
        """
        pids = watch.pids().values()
        for pid in pids:
            wanted = number if number in guard.STOPPING else signal.SIGTERM
            send(pid, wanted if first else signal.SIGINT)
        if not first or not pids:
            send(self._launcher.pid, signal.SIGTERM)

    def _say(self, text: str) -> None:
        """Print a line on stderr, and append it to the run's log if that exists."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {shown(text)}\n"
        path = self.folder / "train.log"
        with contextlib.suppress(OSError):  # a full disk, or a terminal that was closed (nohup)
            print(line, end="", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError):
            if path.exists():
                with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(line)


def newest_step(folder: Path) -> int | None:
    """Return the step of the newest completed checkpoint in an output_dir, without verifying checksums."""
    manifests = (folder / "checkpoints").glob("step-*/manifest.json")
    steps = [re.fullmatch(r"step-(\d{8,})", path.parent.name) for path in manifests]
    return max((int(step[1]) for step in steps if step), default=None)


def _stamp(folder: Path, step: int | None) -> tuple[int, int] | None:
    """Identify a checkpoint among others of the same step; None without one."""
    if step is None:
        return None
    status = (folder / f"checkpoints/step-{step:08d}/manifest.json").stat()
    return status.st_ino, status.st_mtime_ns


def _kill_leftovers() -> None:
    """Kill ranks that outlive the launcher: the kernel does, except one that has just started."""
    ours = f"{guard.SUPERVISOR}={os.getpid()}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = (folder / "environ").read_bytes()
        except OSError:  # ended, or of another user
            continue
        if ours in environ.split(b"\0"):
            send(int(folder.name), signal.SIGKILL)


def _value(options: Sequence[str], name: str) -> str | None:
    """Return the value of the option `name` in `options`, as "name value" or name=value."""
    value = None
    for option, following in zip(options, [*options[1:], None]):
        if option == name:
            value = following
        elif option.startswith(f"{name}="):
            value = option.partition("=")[2]
    return value


def _config_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    config.add_arguments(parser)
    return parser


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command into launcher options, and the script with arguments; `train` is plsc's own program."""
    cut = 0
    while cut < len(argv) and argv[cut].startswith("-"):
        cut += 1 if "=" in argv[cut] else 2
    options, program = list(argv[:cut]), list(argv[cut:])
    if not program:
        raise UserError(f"plsc-run: no program to run; usage: {_USAGE}")
    if program[0] == "train":
        program.insert(0, str(Path(__file__).resolve().parents[3] / "__main__.py"))
    return options, program


def main(argv: Sequence[str] | None = None) -> int:
    """Run `plsc-run`, and return the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv in ([], ["-h"], ["--help"]):
        print(f"usage: {_USAGE}\n\nrestarts what died; docs/reliability.md explains it")
        return 0
    options, program = split_command(argv)
    given = _value(options, "--max_failures") or "3"
    if not given.isdigit() or int(given) < 1:
        raise UserError(f"--max_failures: must be a number of 1 or more (got {given})")
    places = [i for i, option in enumerate(options) if option.partition("=")[0] == "--max_failures"]
    for place in reversed(places):
        del options[place : place + (1 if "=" in options[place] else 2)]
    return Supervisor(options, program, int(given)).run()
