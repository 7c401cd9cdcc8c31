"""Start a script of tests/distributed on several ranks, as a user's launch does, and give back what the ranks printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def launch(
    script: str | Path, ranks: int, folder: Path, *args: str, timeout: float = 240, check: bool = True
) -> subprocess.CompletedProcess:
    """Run `script` on `ranks` ranks; the logs go to `folder`/log. The result's stdout is all ranks' output, in rank order.

    With check=True a failed launch fails the test with the tail of every rank's log.
    """
    logs = Path(folder) / "log"
    command = [
        sys.executable,
        "-m",
        "paddle.distributed.launch",
        "--nproc_per_node",
        str(ranks),
        "--log_dir",
        str(logs),
    ]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    result = subprocess.run(
        [*command, str(script), *args],
        check=False,
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    ranks_said = [log.read_text(errors="replace") for log in sorted(logs.glob("workerlog.*"))]
    if check and result.returncode != 0:
        tails = "\n".join(f"--- rank {rank}\n{text[-3000:]}" for rank, text in enumerate(ranks_said))
        raise AssertionError(f"launch of {script} on {ranks} ranks ended with {result.returncode}\n{tails}")
    result.stdout = "".join(ranks_said)
    return result
