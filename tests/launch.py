"""New processes that import this repository: one Python, or a script on several ranks as a user's launch starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import warm

ROOT = Path(__file__).resolve().parents[1]


def run_python(
    *command: str | Path, cwd: Path, timeout: float = 240, check: bool = True, **env: str
) -> subprocess.CompletedProcess:
    """Run `python *command` in `cwd`, `env` added to the environment; with check=True a failure fails the test."""
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    result = subprocess.run(
        [sys.executable, *map(str, command)],
        check=False,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert not check or result.returncode == 0, (
        f"{command} ended with {result.returncode}\n{result.stderr[-3000:]}"
    )
    return result


def launch(
    script: str | Path,
    ranks: int | None,
    folder: Path,
    *args: str | Path,
    timeout: float = 240,
    check: bool = True,
    **env: str,
) -> subprocess.CompletedProcess:
    """Run `script` on `ranks` ranks (None leaves the number to the launcher); the logs go to `folder`/log.

    A script of the tests is forked from a process that has imported Paddle; what a user starts is started as a user does.
    The result's stdout is all ranks' output, in rank order. With check=True a failed launch fails the test with
    the tail of every rank's log.
    """
    logs = Path(folder) / "log"
    number = [] if ranks is None else ["--nproc_per_node", str(ranks)]
    command = ["-m", "paddle.distributed.launch", *number, "--log_dir", logs, script, *args]
    if ROOT / "tests" in Path(script).resolve().parents:
        result = subprocess.CompletedProcess(
            command, warm.shared().run(command, Path(folder), timeout, **env)
        )
    else:
        result = run_python(*command, cwd=folder, timeout=timeout, check=False, **env)
    ranks_said = [log.read_text(errors="replace") for log in sorted(logs.glob("workerlog.*"))]
    if check and result.returncode != 0:
        tails = "\n".join(f"--- rank {rank}\n{text[-3000:]}" for rank, text in enumerate(ranks_said))
        raise AssertionError(f"launch of {script} on {ranks} ranks ended with {result.returncode}\n{tails}")
    result.stdout = "".join(ranks_said)
    return result
