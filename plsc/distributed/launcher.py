"""Start `python -m plsc ...` on several ranks of this machine, through paddle.distributed.launch.

For Entry.launch and plsc-selftest, which begin in a plain process or a notebook. A user's own launch does not need it.

    launch(["train", "-c", "configs/"], 2, Path("output/log"), print)
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from plsc.distributed import environment
from plsc.distributed.guard import stopped_on
from plsc.errors import shown_lines

LOG = "launcher.log"  # in the folder of the ranks' logs
_MISTAKE_LINES = 20
MAIN = Path(__file__).resolve().parents[1] / "__main__.py"
STARTER = Path(__file__).with_name("paddle_launch.py")


def launch(
    arguments: Sequence[str], ranks: int, logs: Path, say: Callable[[str], object], main: Path = MAIN
) -> int:
    """Run `python -m plsc *arguments` on `ranks` processes, which can import what this one can.

    Args:
        logs: folder for what each rank prints, workerlog.0, workerlog.1, ...
        say: is given what rank 0 prints, a line at a time, line end included. It does not inherit stdout: a notebook shows what
            Python prints only. The launcher's own words go to launcher.log.
        main: another version's __main__.py.

    Returns: the launcher's exit code, 0 if every rank ended with 0.
    """
    starter = [str(STARTER), "--nproc_per_node", str(ranks), "--log_dir", str(logs)]
    env = {**environment.for_ranks(), "PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, sys.path)])}
    if (
        env.get("CUDA_VISIBLE_DEVICES") == ""
    ):  # the usual way to hide GPUs; Paddle's launcher stumbles over it
        del env["CUDA_VISIBLE_DEVICES"]
    with open_log(logs) as words:
        said_before = words.tell()
        process = subprocess.Popen(
            [sys.executable, *starter, str(main), *arguments],
            env=env,
            stdout=subprocess.PIPE,
            stderr=words,
            encoding="utf-8",
            errors="backslashreplace",
        )
    for line in process.stdout:
        say(line)
    code = process.wait()
    if code not in (0, 2) and not stopped_on(code):  # 2: a rank has said why
        for line in _mistakes(logs, said_before):
            say(line)
    return code


def open_log(logs: str | Path) -> IO[bytes]:
    """The launcher's own log, open for appending; nowhere where it cannot be written."""
    try:
        Path(logs).mkdir(parents=True, exist_ok=True)
        return open(Path(logs) / LOG, "ab")
    except OSError:
        return open(os.devnull, "ab")


def show_mistakes(logs: str | Path, start: int, stream: IO[str]) -> None:
    """Print the launcher's last words after `start`, bytes of its log, but for those that it says in every launch."""
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


def run_ranks(arguments: list[str], ranks: int, logs: Path) -> str:
    """Run `python -m plsc *arguments` on `ranks` new processes; returns the last line that they print."""
    lines: list[str] = []
    if ranks > 1:
        launch(arguments, ranks, logs, lines.append)
    else:
        path = os.pathsep.join([os.getcwd(), *filter(None, sys.path)])
        done = subprocess.run(
            [sys.executable, "-m", "plsc", *arguments],
            check=False,
            env={**environment.for_ranks(), "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = done.stdout.splitlines()
    printed = [line.strip() for line in lines if line.strip() and "LAUNCH" not in line]
    return printed[-1] if printed else "nothing was printed"
