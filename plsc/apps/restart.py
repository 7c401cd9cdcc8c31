"""Train on ranks on this machine, and restart them after a failure: `plsc train --ranks N`.

A restart resumes from the newest checkpoint. There is no restart after a user's mistake (exit code 2), nor
after three failures without a newer checkpoint. SIGTERM, SIGINT and SIGHUP are passed on to the ranks, which
save and stop. This module does not import Paddle.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from plsc.checkpoint import store
from plsc.config import Config
from plsc.distributed import launcher, lock
from plsc.errors import escape
from plsc.training import watchdog
from plsc.training.run_folder import check_start, delete_run, how_to_resume, write_config
from plsc.utils.atomic_write import remove

MOST_FAILURES = 3  # failures in a row without a newer checkpoint
_PAUSE = 1.0  # seconds before a restart


def supervise(cfg: Config, arguments: Sequence[str], ranks: int) -> int:
    """Train on `ranks` processes on this machine.

    Args:
        cfg: the run's config.
        arguments: each rank's arguments to `python -m plsc`: `train -c ...`.
        ranks: how many processes.

    Returns the exit code: 0 if the run is done, 1 if it was given up, 2 after a user's mistake, or 128 plus
    the number of the signal that stopped it. Raises UserError if another run uses the folder.
    """
    resumes = check_start(cfg, ranks)
    folder = Path(cfg.Global.output_dir)
    with lock.hold(folder):
        signals: list[int] = []
        for number in watchdog.STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, lambda number, _: signals.append(number))
        failures, newest = 0, store.newest_step(folder / "checkpoints")
        if not resumes:
            delete_run(folder)
            write_config(cfg)  # the ranks read it if `-c` is this folder
            for kind in ("workerlog.*", "rank*.txt"):
                for path in (folder / "log").glob(kind):
                    remove(path)
        overrides = []
        while True:
            ends = _run(folder, [*arguments, *overrides], ranks, signals)
            step = store.newest_step(folder / "checkpoints")
            place = "the beginning" if step is None else f"step {step}"
            stopped = {0, *(128 + number for number in watchdog.STOPPING)}
            if stopped.issuperset(ends.values()):
                return max(code or 0 for code in ends.values())
            if len(signals) > 1:
                _report(folder, f"WARNING ended by a second signal; {how_to_resume(cfg.Global)} from {place}")
                return 128 + signals[-1]
            rank, text = _first_failure(folder, ends)
            if ends[rank] == 2:  # without a text, the rank has printed it
                _report(folder, text and f"ERROR {text}")
                return 2
            if signals and not watchdog.message_file(folder, rank).exists():
                _report(
                    folder, f"INFO stopped on {signal.Signals(signals[0]).name} before the training began"
                )
                return 128 + signals[0]
            failures = failures + 1 if step == newest else 0
            newest = step
            if signals or failures == MOST_FAILURES:
                without = f"{failures} failures without a newer checkpoint"
                why = "not saved on the signal" if signals else without
                _report(folder, f"ERROR {text}; {why}, the logs are in {folder / 'log'}")
                return 1
            _report(folder, f"WARNING {text}; restarting from {place}")
            overrides = ["-o", "Global.resume=true", "Global.checkpoint=newest"]
            time.sleep(_PAUSE)


def _run(
    folder: Path, arguments: Sequence[str], ranks: int, signals: Sequence[int]
) -> Mapping[int, int | None]:
    """Start the ranks, pass signals on, and return the ranks' exit codes as `launch` does."""
    for path in (folder / "log").glob("rank*.txt"):  # from the previous start
        with open(path.with_name(path.stem.replace("rank", "workerlog.")), "ab") as log:
            log.write(path.read_bytes())
        path.unlink()
    passed_on = 0

    def pass_on(running: Collection[subprocess.Popen]) -> None:
        nonlocal passed_on
        for number in signals[passed_on:]:
            for process in running:
                process.send_signal(signal.SIGKILL if passed_on else number)
            passed_on += 1

    env = {watchdog.SUPERVISOR: str(os.getpid())}
    return launcher.launch(arguments, ranks, folder / "log", _print, env=env, watch=pass_on)


def _first_failure(folder: Path, ends: Mapping[int, int | None]) -> tuple[int, str]:
    """Return the rank that failed first and the line that describes it. Print its traceback.

    A rank that failed because of another one counts last, after those that did not answer.
    """
    failed = {rank: code for rank, code in ends.items() if code != 0}
    rank = min(failed, key=lambda rank: {None: 1, watchdog.LOST: 2}.get(failed[rank], 0))
    code, file = failed[rank], watchdog.message_file(folder, rank)
    message = file.read_text("utf-8", "backslashreplace") if file.exists() else ""
    if code == 2:
        return rank, message
    if message and not message.isdigit():
        line, _, traceback = message.partition("\n")
        if code != watchdog.LOST:
            print(traceback, end="", file=sys.stderr, flush=True)
        return rank, line
    when = f"in step {int(message) + 1}" if message else "before its first step"
    if code is None:
        return rank, f"rank {rank} did not answer {when}"
    how = f"was killed (signal {-code})" if code < 0 else f"ended with exit code {code}"
    return rank, f"rank {rank} {how} {when}"


def _print(text: str) -> None:
    with contextlib.suppress(OSError):  # a closed terminal, or a reader that has ended
        print(text, end="", flush=True)


def _report(folder: Path, text: str) -> None:
    """Print a line on stderr, and append it to the run's log if that exists."""
    log = folder / "train.log"
    for line in filter(None, text.split("\n")):
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {escape(line)}\n"
        with contextlib.suppress(OSError):  # a full disk, or a closed terminal (nohup)
            print(line, end="", file=sys.stderr, flush=True)
            if log.exists():
                with open(log, "a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(line)
