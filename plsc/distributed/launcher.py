"""Start `python -m plsc ...` on several ranks of this machine, through paddle.distributed.launch.

launch(["train", "-c", "configs/"], 2, Path("output/log"), print)
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from plsc.distributed import environment
from plsc.errors import UserError, shown_lines

LOG = "launcher.log"  # the launcher's own words, in the folder of the ranks' logs
_LAST_LINES = 20
MAIN = Path(__file__).resolve().parents[1] / "__main__.py"
# In these the launcher prefers the environment to its arguments. An operator on Kubernetes sets some.
_OVERRIDES = (
    *("PADDLE_MASTER", "PADDLE_NNODES", "PADDLE_RANK", "PADDLE_TRAINER_ID", "POD_IP"),
    *("PADDLE_NPROC_PER_NODE", "PADDLE_LOG_DIR", "PADDLE_JOB_ID"),
)
STARTER = Path(__file__).with_name("paddle_launch.py")


def start(
    arguments: Sequence[str], ranks: int, logs: Path, device: str = "auto", main: Path = MAIN, **of_popen
) -> tuple[subprocess.Popen, int]:
    """Start `python main *arguments` on `ranks` processes with the import path of this one.

    Args:
        logs: folder for the output of each rank, workerlog.0, workerlog.1, ..., and of the launcher.
        device: that `arguments` ask for.
        main: plsc's __main__.py, or that of the benchmarks.
        of_popen: further arguments of Popen; `env` is added to the environment.

    Returns: the launcher's process, and the byte at which its part of launcher.log begins.
    """
    # The name of this machine may have no address, or another's: its ranks meet on the loopback interface.
    options = ["--nproc_per_node", str(ranks), "--log_dir", str(logs), "--host", "127.0.0.1"]
    env = {
        **{name: value for name, value in environment.for_ranks().items() if name not in _OVERRIDES},
        environment.DEVICE: device,
        "PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, sys.path)]),
        **of_popen.pop("env", {}),
    }
    logs.mkdir(parents=True, exist_ok=True)
    with open(logs / LOG, "ab") as log:
        begin = log.tell()
        command = [sys.executable, str(STARTER), str(ranks), *options, str(main), *arguments]
        return subprocess.Popen(command, env=env, stderr=log, **of_popen), begin


def last_lines(logs: Path, begin: int) -> list[str]:
    """Return the last lines of launcher.log after byte `begin`, without those of every launch.

    The launcher has ended: the files in which it keeps its environment, passwords among it, are deleted.
    """
    for pattern in (f"default.{6 * '[a-z]'}.log", "envlog.*", "backup_env.*.json"):
        for path in logs.glob(pattern):
            path.unlink(missing_ok=True)
    with open(logs / LOG, encoding="utf-8", errors="backslashreplace") as file:
        file.seek(begin)
        lines = [shown_lines(line) for line in file if not line.startswith(("LAUNCH INFO", "LAUNCH WARNING"))]
    return lines[-_LAST_LINES:]


def refuse_what_did_not_start(lines: Sequence[str]) -> None:
    """Raise UserError if paddle_launch.py did not start the launcher whose last lines these are."""
    for line in lines:
        if line.startswith("ERROR "):
            raise UserError(line.removeprefix("ERROR ").strip())


def launch(
    arguments: Sequence[str],
    ranks: int,
    logs: Path,
    say: Callable[[str], object],
    main: Path = MAIN,
    device: str = "auto",
) -> int:
    """Run `python main *arguments` on `ranks` processes; return the launcher's exit code.

    Args: as of `start`; `say` is called with each line that rank 0 prints, line end included. Rank 0 does not
    inherit stdout, since a notebook shows only what Python prints.

    Raises: UserError if there are more ranks than cards.
    """
    streams = {"stdout": subprocess.PIPE, "encoding": "utf-8", "errors": "backslashreplace"}
    process, begin = start(arguments, ranks, logs, device, main, **streams)
    for line in process.stdout:
        say(line)
    code = process.wait()
    lines = last_lines(logs, begin)
    refuse_what_did_not_start(lines)
    if code not in (0, 2):  # 2: a rank has printed why
        for line in lines:
            say(line)
    return code
