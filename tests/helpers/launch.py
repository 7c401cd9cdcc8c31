"""New processes that import this repository: one Python, or a script on several ranks as a user's launch
starts it."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.helpers import warm

ROOT = warm.ROOT


def free_port() -> int:
    """Return a port of this machine that nothing listens to. The system gives other programs others first."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _environment(more: Mapping[str, str | None]) -> dict[str, str]:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", **more}
    return {name: value for name, value in env.items() if value is not None}


def start_python(*command: str | Path, env: Mapping[str, str | None] = {}, **of_popen) -> subprocess.Popen:
    """Start `python *command` and return at once. `env` is as for `run_python`, all else as for Popen."""
    return subprocess.Popen([sys.executable, *map(str, command)], env=_environment(env), **of_popen)


def run_python(
    *command: str | Path, cwd: Path, timeout: float = 240, check: bool = True, **env: str | None
) -> subprocess.CompletedProcess:
    """Run `python *command` in `cwd`, with `env` added to the environment (None removes a variable). With
    check=True a failure fails the test."""
    result = subprocess.run(
        [sys.executable, *map(str, command)],
        check=False,
        cwd=cwd,
        env=_environment(env),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert not check or result.returncode == 0, (
        f"{command} ended with {result.returncode}\n{result.stderr[-3000:]}"
    )
    return result


def run_forked(
    *command: str | Path, cwd: Path, timeout: float = 240, check: bool = True, **env: str
) -> subprocess.CompletedProcess:
    """The same for a script or "-m" and a module, without the seconds that importing Paddle takes: see
    tests/helpers/warm.py."""
    with tempfile.NamedTemporaryFile("r") as said:
        code = warm.shared().run(command, Path(cwd), timeout, said.name, **env)
        result = subprocess.CompletedProcess(command, code, said.read(), (Path(cwd) / "stderr").read_text())
    assert not check or code == 0, f"{command} ended with {code}\n{result.stderr[-3000:]}"
    return result


def launch(
    script: str | Path,
    ranks: int | None,
    folder: Path,
    *args: str | Path,
    timeout: float = 240,
    check: bool = True,
    real: bool = False,
    **env: str,
) -> subprocess.CompletedProcess:
    """Run `script` on `ranks` ranks (None lets the launcher choose). The logs are in `folder`/log.

    All processes are forked from one that has imported Paddle. real=True starts them as a user does. The
    result's stdout is all ranks' output, in rank order. With check=True a failed launch fails the test with
    the last lines of every rank's log.
    """
    logs = Path(folder) / "log"
    number = [] if ranks is None else ["--nproc_per_node", str(ranks)]
    command = ["-m", "paddle.distributed.launch", *number, "--log_dir", logs, script, *args]
    run = run_python if real else run_forked
    result = run(*command, cwd=folder, timeout=timeout, check=False, **env)
    ranks_said = [log.read_text(errors="replace") for log in sorted(logs.glob("workerlog.*"))]
    if check and result.returncode != 0:
        tails = "\n".join(f"--- rank {rank}\n{text[-3000:]}" for rank, text in enumerate(ranks_said))
        raise AssertionError(f"launch of {script} on {ranks} ranks ended with {result.returncode}\n{tails}")
    result.stdout = "".join(ranks_said)
    return result


def _fork(command, *, env, stdout, **_) -> warm.Program:
    return warm.shared().start(command[1:], Path.cwd(), stdout.name, stdout.name, **env)


class Forking:
    """What plsc/distributed/launcher.py uses of the module subprocess, by processes that are forked."""

    STDOUT = subprocess.STDOUT
    Popen = staticmethod(_fork)
