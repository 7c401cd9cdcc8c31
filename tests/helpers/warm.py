"""plsc train, Paddle's launcher and the ranks, forked from a process that has imported Paddle. A start
takes one second instead of eight.

Popen is replaced, reports have no pictures, fsync does nothing, plsc train does not pause and the launcher
looks at its ranks five times a second, not once. All else is unchanged: who starts, kills and waits for whom.
The fork is
sound: that process has computed nothing and has no thread at work. tests/distributed/test_restart.py shows
    that its runs have the same bits as real starts.

    code = shared().start(["tools/train.py", "--ranks", "2", ...], folder).wait(60)
"""

from __future__ import annotations

import atexit
import json
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_SETTINGS = (
    "PATH",
    "HOME",
    "LD_LIBRARY_PATH",
    "PORT_RANGE",
    "PLSC_KERNELS",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_CBWR",
    "ONEDNN_MAX_CPU_ISA",
)


class Warm:
    """The process to fork from, and its end of a socket. Its programs see `env` and little else from this
    process's environment."""

    def __init__(self):
        self._socket, theirs = socket.socketpair()
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        settings = {name: os.environ[name] for name in _SETTINGS if name in os.environ}
        self.env = {**settings, "OMP_NUM_THREADS": "1", "GLOG_minloglevel": "1", "PYTHONPATH": path}
        command = [sys.executable, "-m", "tests.helpers.warm", str(theirs.fileno())]
        self._process = subprocess.Popen(command, env=self.env, pass_fds=[theirs.fileno()], cwd=ROOT)
        theirs.close()

    def start(
        self,
        command: Sequence[str | Path],
        folder: Path,
        stdout: str = os.devnull,
        stderr: str | None = None,
        **env: str,
    ) -> Program:
        """Run `python *command` in `folder`. Its output goes to the file `stdout`, by default a new one, and
        to folder/stderr."""
        ours, theirs = socket.socketpair()
        if stderr is None:
            stderr = str(folder / "stderr")
            Path(stderr).unlink(missing_ok=True)
        request = {"command": [str(word) for word in command], "env": {**self.env, **env}, "cwd": str(folder)}
        with theirs, open(stdout, "ab") as output, open(stderr, "ab") as errors:
            files = [file.fileno() for file in (theirs, output, errors)]
            socket.send_fds(self._socket, [json.dumps(request).encode()], files)
        return Program(ours)

    def run(
        self,
        command: Sequence[str | Path],
        folder: Path,
        timeout: float,
        stdout: str = os.devnull,
        **env: str,
    ) -> int:
        """Return the exit code of a program, which must end in time with all that it has started."""
        program = self.start(command, folder, stdout, **env)
        try:
            return program.wait(timeout)
        finally:
            for pid in processes(folder.resolve()) if program.returncode is None else ():
                os.kill(pid, signal.SIGKILL)


@lru_cache
def shared() -> Warm:
    """One for all tests. It ends with this process."""
    return Warm()


class Program:
    """A process that was started, as far as it is like Popen's."""

    def __init__(self, answers: socket.socket):
        self._answers = answers
        self.pid = int(self._read_line())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code (negative: killed by that signal), or None."""
        if self.returncode is None and select.select([self._answers], [], [], 0)[0]:
            self.returncode = int(self._read_line())
            self._answers.close()
        return self.returncode

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float = 60) -> int:
        if self.returncode is None and not select.select([self._answers], [], [], timeout)[0]:
            raise TimeoutError(f"still at work after {timeout} s")
        return self.poll()

    def _read_line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            byte = self._answers.recv(1)
            assert byte, "the warm process has ended, see its stderr"
            line += byte
        return line


def lines(folder: Path) -> list[str]:
    """What plsc train itself has said in `folder`, without the time."""
    said = [re.sub(r"^[-\d]+ [:\d]+ ", "", line) for line in (folder / "stderr").read_text().splitlines()]
    return [line for line in said if re.match("INFO|WARNING|ERROR", line)]


def processes(folder: Path) -> list[int]:
    """Those whose working directory is `folder`, less zombies and this process."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            here = os.readlink(entry / "cwd") == str(folder)
        except OSError:  # ended, a zombie, or of another user
            continue
        if here and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def all_ended(folder: Path) -> bool:
    """Whether nothing that was started in `folder` is left after a minute at most."""
    end = time.monotonic() + 60
    while processes(folder):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


# -- in the warm process
# ------------------------------------------------------------------------------------------------------


class Forked(subprocess.Popen):
    """Popen that forks this process for `python [-u] script.py ...` and `python -m paddle.distributed.launch
    ...`."""

    def __init__(self, args, **keywords):
        words = [word for word in args if word != "-u"]
        ours = words[0] == sys.executable and (words[1] == "-m" or words[1].endswith(".py"))
        if not ours:
            super().__init__(args, **keywords)
            return
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self.args, self.returncode, self._child_created = args, None, True
        self.stdin = self.stdout = self.stderr = None
        self._waitpid_lock = threading.Lock()
        piped = keywords.get("stdout") == subprocess.PIPE
        if piped:
            read, write = os.pipe()
            self.stdout = os.fdopen(read)
            keywords["stdout"] = os.fdopen(write, "w")
        is_begun, begins = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            _become(words[1:], **keywords)
        os.close(begins)
        # _become closes its end. Until then a signal to the child's group is one to this process's.
        os.read(is_begun, 1)
        os.close(is_begun)
        if piped:
            keywords["stdout"].close()


def _become(
    command,
    env=None,
    stdout=None,
    stderr=None,
    preexec_fn=None,
    start_new_session=False,
    cwd=None,
    shell=False,
    **_of_pipes,
):
    """What exec does, as far as it matters here. It never returns."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in ((1, stdout), (2, stderr)):
        if stream is not None:
            os.dup2(1 if stream == subprocess.STDOUT else stream.fileno(), number)
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
    if cwd is not None:
        os.chdir(cwd)
    if start_new_session:
        os.setsid()
    if preexec_fn:
        preexec_fn()
    os.closerange(3, 256)  # Forked waits for it
    code = 1
    try:
        sys.stdout.reconfigure(write_through=True)
        _run(command)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 (the end of a process)
        traceback.print_exc()
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code & 255)


def _run(command: list[str]) -> None:
    if command[0] == "-m":
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        sys.path[0] = str(Path(command[0]).resolve().parent)
        runpy.run_path(command[0], run_name="__main__")


def _keep(request: dict, answers: int, output: int, errors: int) -> None:
    """Start the program of a request, say its process and, when it has ended, its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(output, "w") as stdout, open(errors, "w") as stderr:
        command = [sys.executable, *request["command"]]
        streams = {"stdout": stdout, "stderr": stderr}
        child = Forked(command, env=request["env"], cwd=request["cwd"], start_new_session=True, **streams)
    os.write(answers, f"{child.pid}\n".encode())
    os.write(answers, f"{child.wait()}\n".encode())
    os._exit(0)


def do_not_sync() -> None:
    """Make fsync do nothing: it waits for the disk, for longer than a tiny run computes.

    What a killed process has written is in the system's memory. That plsc syncs, and when, is tested by what
    takes its place.
    """
    os.fsync = lambda _: None


def main(number: int) -> None:
    import plsc  # isort: skip (before Paddle, as in a user's process: it loads zlib, which Paddle 2.6 needs first)
    import paddle
    import paddle.distributed.launch.main
    import visualdl  # noqa: F401
    from paddle.distributed.launch.job.pod import Pod

    import plsc.apps.restart
    import plsc.evaluation.report
    import plsc.evaluation.results
    import plsc.training.trainer

    do_not_sync()
    plsc.evaluation.report.draw = lambda *_: []
    plsc.apps.restart._PAUSE = 0
    Pod.watch.__defaults__ = tuple(0.2 if default == 1 else default for default in Pod.watch.__defaults__)
    # A fork has but the thread that forks. Paddle 2.6 starts an idle one when it is imported, 3.x none.
    assert len(os.listdir("/proc/self/task")) <= (2 if paddle.__version__.startswith("2.") else 1)
    subprocess.Popen = Forked
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended keepers vanish by themselves
    with socket.socket(fileno=number) as requests:
        while True:
            text, descriptors, _, _ = socket.recv_fds(requests, 1 << 16, 3)
            if not text:
                return
            if not os.fork():
                _keep(json.loads(text), *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)


if __name__ == "__main__":
    main(int(sys.argv[1]))
