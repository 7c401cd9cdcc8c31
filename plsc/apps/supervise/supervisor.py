"""Run Paddle's launcher, restart it after failures, and report their causes: `plsc run`.

    plsc run --nproc_per_node 2 [--max_failures 3] train -c configs/ -o ...
    plsc run --nnodes 2 --rank 0 --master 10.0.0.1:8090 --nproc_per_node 8 train ...    on each machine

It reads the config for the output folder, locks that, and starts Paddle's launcher, whose own messages go to
launcher.log beside the ranks' logs. After a failure it starts again with Global.resume=true, but not after a
mistake of the user (exit code 2) or R failures without a new checkpoint between them. SIGTERM and SIGINT go
to the ranks, which save and stop. Imports no Paddle. Several machines: machines.py.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from plsc.apps.supervise.history import History, Verdict, describe_saved, describe_unsaved
from plsc.apps.supervise.job import Job, Start, note_signals, resuming
from plsc.apps.supervise.machines import Machine
from plsc.apps.supervise.options import HELP, Options, read_options
from plsc.distributed import guard, lock

_POLL = 0.1  # seconds


class Supervisor:
    """One call of plsc run on a single machine."""

    def __init__(self, options: Options):
        self._job = Job(options)
        self._max_failures = options.max_failures
        self._signals: list[int] = []

    def run(self) -> int:
        """Run; return 0: done, 130 or 143: stopped on SIGINT or SIGTERM, 1: given up, 2: user's mistake."""
        note_signals(self._signals)
        with lock.hold(self._job.folder):
            return self._run()

    def _run(self) -> int:
        job = self._job
        history = History(self._max_failures, job.stamp)
        newest = job.newest_step()
        resumes = not job.chosen and job.is_unfinished(newest)
        history.begin(newest, resumes, job.resumes_newest)
        if resumes:
            job.say(job.describe_resume(newest))
        while True:
            start = self._start(history.step)
            if self._signals or start.watch.stopped():
                return self._ended_on_request(start)
            if start.code == 0:
                return 0
            failed = start.failure()
            verdict = history.after_failure(
                failed.text,
                job.newest_step(),
                user=failed.user,
                full=job.is_full(failed.text),
                logs=job.logs,
            )
            job.say(verdict.line)
            if verdict.code is not None:
                return verdict.code
            self._pause(verdict.pause)
            if self._signals:
                name = signal.Signals(self._signals[0]).name
                job.say(f"INFO stopped on {name} before a restart; the same command goes on")
                return guard.exit_code(signal.Signals[name])

    def _start(self, step: int | None) -> Start:
        """Start the launcher and wait for all its processes."""
        env = {guard.LOCKED: str(self._job.folder.resolve())}
        start = self._job.start(overrides=resuming() if step is not None else [], env=env)
        while start.code is None:
            start.look(self._signals)
            time.sleep(_POLL)
        return start

    def _pause(self, seconds: float) -> None:
        """Wait until a signal or the end of the time."""
        end = time.monotonic() + seconds
        while not self._signals and time.monotonic() < end:
            time.sleep(min(_POLL, seconds))

    def _ended_on_request(self, start: Start) -> int:
        name = start.watch.stopped() or signal.Signals(self._signals[0]).name
        step = self._job.newest_step()
        verdict = describe_stop(start, name, step, self._job.logs)
        if verdict.line:
            self._job.say(verdict.line)
        return verdict.code


def describe_stop(start: Start, name: str, step: int | None, logs: str) -> Verdict:
    """Describe the end of a run whose start the signal `name` has ended; its line is "" if there is nothing
    to say.

    Args:
        step: of the newest checkpoint. logs: the folder of the logs.
    """
    if start.watch.stopped():
        return describe_saved(name, step)
    if start.code == 0:
        return Verdict("", 0)  # the run was at its end
    return describe_unsaved(name, start.watch.failure(abs(start.code), logs), step)


def main(argv: Sequence[str]) -> int:
    """Run `plsc run`, and return the exit code."""
    if list(argv) in ([], ["-h"], ["--help"]):
        print(HELP)
        return 0
    options = read_options(argv)
    if options.machines:
        return Machine(options).run()
    return Supervisor(options).run()
