"""plsc run without Paddle: a stand-in for Paddle's launcher, and a program that counts steps instead of
training.

The launcher behaves as the real one was measured to: it polls, ends the others when one fails, and its exit
code is that of the first failed rank by number. `write` puts both into a folder; PYTHONPATH makes them found.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.helpers.launch import ROOT, start_python

LAUNCHER = """
import os, signal, subprocess, sys, time

options = sys.argv[1:]
ranks = int(options[options.index("--nproc_per_node") + 1])
os.makedirs("out/log", exist_ok=True)
for name in ("default.abcdef.log", "envlog.0", "backup_env.0.json", "workerlog.0"):
    open(f"out/log/{name}", "w").write(str(os.environ))
cut = 0
while options[cut].startswith("-"):
    cut += 2
children = [
    subprocess.Popen([sys.executable, *options[cut:]], env={**os.environ, "PADDLE_TRAINER_ID": str(rank)}, start_new_session=True)
    for rank in range(ranks)
]
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
while any(child.poll() is None for child in children) and not any(child.poll() for child in children) and not asked:
    time.sleep(0.05)
for child in children:
    if child.poll() is None:
        child.terminate()
end = time.monotonic() + 5
while any(child.poll() is None for child in children) and time.monotonic() < end:
    time.sleep(0.05)
for child in children:
    child.kill()
sys.exit(15 if asked else next((child.wait() for child in children if child.wait()), 0))
"""

PADDLE = """
from types import SimpleNamespace

device = SimpleNamespace(get_all_custom_device_type=lambda: [], cuda=None)
is_compiled_with_cuda = is_compiled_with_xpu = lambda: False
"""

COLLECTIVE = """
import time


def wait(path, failed):  # it fails when the other rank has failed
    began = time.monotonic()
    while not (path.exists() and path.read_text()):
        time.sleep(0.01)
        if failed.exists() or time.monotonic() > began + 5:
            raise RuntimeError("gloo/transport/tcp/pair.cc:584] TIMEOUT")
"""

PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from paddle.distributed.collective import wait
from plsc.errors import UserError
from plsc.distributed.guard import Guard

folder, rank = Path("out"), int(os.environ["PADDLE_TRAINER_ID"])
when, action = os.environ.get("FAULT", "9:9:none").rpartition(":")[::2]  # FAULT=rank:step:action
often = os.environ.get("OFTEN")


def stuck():
    time.sleep(60)


def act():
    if not often and Path("done").exists():
        return
    Path("done").touch()
    while len(Path("starts").read_text().splitlines()) % 2:  # the other rank must have begun, or it is ended first
        time.sleep(0.05)
    time.sleep(0.7)  # the supervisor has looked, which it does ten times a second
    if action in ("kill", "segv"):
        os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSEGV)
    elif action == "launcher":
        os.kill(os.getppid(), signal.SIGKILL)
        stuck()
    elif action == "supervisor":
        os.kill(int(os.environ["PLSC_RUN_PID"]), signal.SIGTERM)
        time.sleep(0.5)
    elif action == "supervisor-dies":
        os.kill(int(os.environ["PLSC_RUN_PID"]), signal.SIGKILL)
        stuck()
    elif action == "mistake":
        raise UserError("labels.txt:17: label 1000")
    elif action == "defect":
        raise RuntimeError("a defect")
    elif action == "hang":
        stuck()
    elif action == "exit":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(0.3)
        os._exit(2)


with open("starts", "a") as file:
    file.write(f"{rank} {' '.join(sys.argv[1:])}\\n")
if when == "all:start":
    act()
with Guard(folder, float(os.environ.get("HANG", "0"))) as guard:
    guard.listen()
    done = sorted(int(path.name[5:]) for path in folder.glob("checkpoints/step-*"))
    step = done[-1] if done and "Global.resume=true" in sys.argv else 0
    while step < 6:
        if when == f"{rank}:{step + 1}":
            act()
        own, other = (Path(f"beat-{os.getppid()}-{r}-{step + 1}") for r in (rank, 1 - rank))
        own.write_text(str(int(guard.signal)))
        wait(other, folder / f"errors/rank{1 - rank}.json")
        agreed = int(own.read_text()) or int(other.read_text())
        step += 1
        time.sleep(0.02)
        guard.step_started(step)
        if rank == 0 and (step % 2 == 0 or agreed):
            Path(f"{folder}/checkpoints/step-{step:08d}").mkdir(parents=True, exist_ok=True)
            Path(f"{folder}/checkpoints/step-{step:08d}/manifest.json").touch()
        if agreed:
            guard.stop(signal.Signals(agreed).name)
            break
"""

RUN = """
import sys
from plsc.apps.supervise import history
from plsc.cli import main

history._PAUSE = 0.1  # before a restart
sys.exit(main(["run", *sys.argv[1:]]))
"""


def write(folder: Path) -> None:
    package = folder / "fake/paddle/distributed/launch"
    package.mkdir(parents=True)
    for path in (package, package.parent, package.parent.parent):
        (path / "__init__.py").write_text("")
    (folder / "fake/paddle/__init__.py").write_text(PADDLE)
    (folder / "fake/paddle/utils.py").write_text("dlpack = None\n")
    (package / "__main__.py").write_text(LAUNCHER)
    (package.parent / "collective.py").write_text(COLLECTIVE)
    (folder / "fake/run.py").write_text(RUN)
    (folder / "program.py").write_text(PROGRAM)


def supervise(folder: Path, *options: str, overrides: Sequence[str] = (), **env: str) -> subprocess.Popen:
    """plsc run in `folder` with the stand-ins, as two ranks, whose pauses are short; stderr is piped."""
    command = [
        folder / "fake/run.py",
        "--nproc_per_node",
        "2",
        *options,
        "program.py",
        "-o",
        "Global.output_dir=out",
        *overrides,
    ]
    env = {"PYTHONPATH": f"{folder / 'fake'}{os.pathsep}{ROOT}", **env}
    streams = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    return start_python(*command, cwd=folder, env=env, **streams)
