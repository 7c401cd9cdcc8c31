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

from plsc import environment

MAIN = Path(__file__).with_name("__main__.py")


def launch(
    arguments: Sequence[str], ranks: int, logs: Path, say: Callable[[str], object], main: Path = MAIN
) -> int:
    """Run `python -m plsc *arguments` on `ranks` processes, which can import what this one can.

    Args:
        logs: folder for what each rank prints, workerlog.0, workerlog.1, ...
        say: is given what the launcher and rank 0 print, a line at a time, line end included. They do not inherit stdout: a
            notebook shows what Python prints only.
        main: another version's __main__.py.

    Returns: the launcher's exit code, 0 if every rank ended with 0.
    """
    starter = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(ranks), "--log_dir", str(logs)]
    env = {**environment.for_ranks(), "PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, sys.path)])}
    if (
        env.get("CUDA_VISIBLE_DEVICES") == ""
    ):  # the usual way to hide GPUs; Paddle's launcher stumbles over it
        del env["CUDA_VISIBLE_DEVICES"]
    process = subprocess.Popen(
        [sys.executable, *starter, str(main), *arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    for line in process.stdout:
        say(line)
    return process.wait()
