"""Start `python -m plsc ...` on several ranks of this machine, through paddle.distributed.launch.

For plsc selftest and what is measured, whose output this process reads. A training has its supervisor,
plsc/apps/supervise.

    launch(["train", "-c", "configs/"], 2, Path("output/log"), print)
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from plsc.distributed import environment
from plsc.distributed.guard import stopped_on
from plsc.errors import UserError, shown_lines

LOG = "launcher.log"  # in the folder of the ranks' logs
_MISTAKE_LINES = 20
MAIN = Path(__file__).resolve().parents[1] / "__main__.py"
STARTER = Path(__file__).with_name("paddle_launch.py")


def launch(
    arguments: Sequence[str],
    ranks: int,
    logs: Path,
    say: Callable[[str], object],
    main: Path = MAIN,
    device: str = "auto",
) -> int:
    """Run `python -m plsc *arguments` on `ranks` processes with the import path of this one.

    Args:
        logs: folder for the output of each rank, workerlog.0, workerlog.1, ...
        say: is called with each line that rank 0 prints, line end included. Rank 0 does not inherit stdout,
            since a notebook shows only what Python prints. The launcher's own messages go to launcher.log.
        main: another __main__.py than this plsc's.
        device: that `arguments` ask for.

    Returns: the launcher's exit code, 0 if every rank ended with 0.
    Raises: UserError if there are more ranks than cards.
    """
    starter = [str(STARTER), "--nproc_per_node", str(ranks), "--log_dir", str(logs)]
    env = {
        **environment.for_ranks(),
        environment.COMMAND: environment.command_line(),
        environment.DEVICE: device,
        "PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, sys.path)]),
    }
    with open_log(logs) as log:
        log_start = log.tell()
        process = subprocess.Popen(
            [sys.executable, *starter, str(main), *arguments],
            env=env,
            stdout=subprocess.PIPE,
            stderr=log,
            encoding="utf-8",
            errors="backslashreplace",
        )
    for line in process.stdout:
        say(line)
    code = process.wait()
    forget_environments(logs)
    if why := refusal(logs, log_start):
        raise UserError(why)
    if code not in (0, 2) and not stopped_on(code):  # 2: a rank has printed why
        for line in _mistakes(logs, log_start):
            say(line)
    return code


def open_log(logs: str | Path) -> IO[bytes]:
    """Open the launcher's own log for appending; /dev/null where it cannot be written."""
    try:
        Path(logs).mkdir(parents=True, exist_ok=True)
        return open(Path(logs) / LOG, "ab")
    except OSError:
        return open(os.devnull, "ab")


def forget_environments(logs: str | Path) -> None:
    """Delete the files in which the launcher keeps all of its environment, passwords among it, for each
    start."""
    for pattern in (f"default.{6 * '[a-z]'}.log", "envlog.*", "backup_env.*.json"):
        for path in Path(logs).glob(pattern):
            path.unlink(missing_ok=True)


def refusal(logs: str | Path, start: int) -> str:
    """Return why paddle_launch.py did not start the launcher whose log has begun at byte `start`; "" if it
    did."""
    lines = [line for line in _mistakes(logs, start) if line.startswith("ERROR ")]
    return lines[-1].removeprefix("ERROR ").strip() if lines else ""


def finish_line(logs: str | Path) -> None:
    """End a line of the first rank's log that a full disk has cut: the launcher has shown it on stdout."""
    with contextlib.suppress(OSError), open(Path(logs) / "workerlog.0", "rb") as file:
        file.seek(-1, os.SEEK_END)  # an empty one has no byte before its end
        if file.read() != b"\n":
            print(flush=True)


def show_mistakes(logs: str | Path, start: int, stream: IO[str]) -> None:
    """Print the last lines of the launcher's log after byte `start`, without those of every launch."""
    stream.writelines(_mistakes(logs, start))
    stream.flush()


def _mistakes(logs: str | Path, start: int) -> list[str]:
    try:
        with open(Path(logs) / LOG, encoding="utf-8", errors="backslashreplace") as file:
            file.seek(start)
            lines = [line for line in file if not line.startswith("LAUNCH INFO")]
    except OSError:
        return []
    return [shown_lines(line) for line in lines[-_MISTAKE_LINES:]]


def run_ranks(arguments: list[str], ranks: int, logs: Path, device: str = "cpu", main: Path = MAIN) -> str:
    """Run `python main *arguments` on `ranks` new processes, and return the last line that they print.

    device: that the arguments ask for. main: of plsc, or of the benchmarks. Raises UserError if there are
    more ranks than cards.
    """
    lines: list[str] = []
    if ranks > 1:
        launch(arguments, ranks, logs, lines.append, main, device)
    else:
        path = os.pathsep.join([os.getcwd(), *filter(None, sys.path)])
        done = subprocess.run(
            [sys.executable, str(main), *arguments],
            check=False,
            env={**environment.for_ranks(), "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = done.stdout.splitlines()
    printed = [line.strip() for line in lines if line.strip() and "LAUNCH" not in line]
    return printed[-1] if printed else "nothing was printed"
