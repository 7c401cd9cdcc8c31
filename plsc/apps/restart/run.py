"""Start Paddle's launcher on this machine, and again after a failure: `plsc train --ranks N`.

A start goes on from the newest checkpoint. There is none after a mistake of the user (exit code 2), nor after
three failures without a newer checkpoint. SIGTERM and SIGINT go to the ranks, which save and stop. Imports no
Paddle.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from plsc.apps.restart.postmortem import Failure, Watch
from plsc.checkpoint import store
from plsc.config import Config
from plsc.distributed import guard, launcher, lock
from plsc.errors import shown
from plsc.training.start import delete_run, goes_on, is_finished

MOST_FAILURES = 3  # without a newer checkpoint between them
_POLL = 0.1  # seconds
_PAUSE = 1.0  # seconds before a restart


def supervise(cfg: Config, arguments: Sequence[str], ranks: int) -> int:
    """Train on `ranks` processes of this machine.

    Args:
        cfg: of the run. arguments: of `python -m plsc` on each rank, `train -c ...`.

    Returns: 0: done; 130 or 143: stopped on SIGINT or SIGTERM; 1: given up; 2: a mistake of the user.
    Raises: UserError if another run has the folder, or there are more ranks than cards.
    """
    cfg.check_ranks(ranks)
    cfg.check_data()
    folder = Path(cfg.Global.output_dir)
    with lock.hold(folder):
        signals: list[int] = []
        _note_signals(signals)
        failures, newest = 0, store.newest_step(folder / "checkpoints")
        if not goes_on(cfg):
            delete_run(folder)
        overrides = ["-o", "Global.overwrite=false"]
        while True:
            failure = _run(cfg, [*arguments, *overrides], ranks, signals)
            step = store.newest_step(folder / "checkpoints")
            if len(signals) > 1:
                _say(
                    folder, f"WARNING ended by a second signal; the same command goes on from {_place(step)}"
                )
                return 128 + signals[-1]
            if failure is None:
                return _code_of_end(folder, signals)
            if failure.user:
                _say(folder, failure.text and f"ERROR {failure.text}")
                return 2
            failures = failures + 1 if step == newest else 0
            newest = step
            if signals or failures == MOST_FAILURES:
                why = (
                    "not saved on the signal"
                    if signals
                    else f"{failures} failures without a newer checkpoint"
                )
                _say(folder, f"ERROR {failure.text}; {why}, the logs are in {folder / 'log'}")
                return 1
            _say(folder, f"WARNING {failure.text}; starting again from {_place(step)}")
            overrides = ["-o", "Global.resume=true", "Global.checkpoint=newest"]
            time.sleep(_PAUSE)


def _run(cfg: Config, arguments: Sequence[str], ranks: int, signals: Sequence[int]) -> Failure | None:
    """Start the launcher, and wait until it and all ranks have ended; None: well, or on a signal."""
    folder = Path(cfg.Global.output_dir)
    logs = folder / "log"
    watch = Watch(folder / "errors", logs)
    process, begin = launcher.start(
        arguments,
        ranks,
        logs,
        cfg.Global.device,
        env={guard.SUPERVISOR: str(os.getpid())},
        start_new_session=True,  # Ctrl-C must reach the ranks through us only, once
        preexec_fn=guard.die_with_parent,
    )
    passed_on = 0
    while (code := process.poll()) is None:
        pids = watch.look()
        for number in signals[passed_on:]:
            if passed_on:
                process.kill()
            elif not pids:  # the ranks do not handle signals yet
                process.terminate()
            for pid in pids:  # not by the launcher, which would give them only 30 s to save
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            passed_on += 1
        time.sleep(_POLL)
    lines = launcher.last_lines(logs, begin)
    launcher.refuse_what_did_not_start(lines)
    stopped = code == signal.SIGTERM  # its exit code after a SIGTERM to itself, on which the ranks have saved
    if code == 0 or (stopped or signals) and watch.is_clean():
        watch.close()
        return None
    failure = watch.failure(code, lines)
    watch.keep_tracebacks(logs / launcher.LOG)
    print(failure.traceback, end="", file=sys.stderr, flush=True)
    return failure


def _code_of_end(folder: Path, signals: Sequence[int]) -> int:
    """Return the exit code of a run that has ended without a failure."""
    if not signals and is_finished(folder):
        return 0
    number = signals[0] if signals else signal.SIGTERM  # one that went to a rank or the launcher
    if not (folder / "checkpoints").exists():
        _say(folder, f"INFO stopped on {signal.Signals(number).name} before the training began")
    return 128 + number


def _place(step: int | None) -> str:
    return "the beginning" if step is None else f"step {step}"


def _note_signals(signals: list[int]) -> None:
    """Append the numbers of signals that ask to stop to `signals` from now on; an ignored one stays
    ignored."""
    for number in (*guard.STOPPING, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            wanted = signal.SIGTERM if number == signal.SIGHUP else number
            signal.signal(number, lambda *_, wanted=wanted: signals.append(wanted))


def _say(folder: Path, text: str) -> None:
    """Print a line on stderr, and append it to the run's log if that exists."""
    log = folder / "train.log"
    for line in filter(None, text.split("\n")):
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {shown(line)}\n"
        with contextlib.suppress(OSError):  # a full disk, or a terminal that was closed (nohup)
            print(line, end="", file=sys.stderr, flush=True)
            if log.exists():
                with open(log, "a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(line)
