"""plsc-run, Paddle's launcher and the ranks as they are, but forked from a process that has imported Paddle: a start costs a
second and not eight.

Only what Popen does is replaced, and reports have no pictures; who starts, kills and waits for whom stays. The fork is sound: that
process has one thread, and has computed nothing. tests/distributed/test_restart.py shows that its runs have the bits of a real launch.

    with Warm() as warm: code = warm.start(["tools/run.py", "--nproc_per_node", "2", ...], folder).wait(60)
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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_SETTINGS = ("GLOG_minloglevel", "OMP_NUM_THREADS", "PATH", "HOME", "LD_LIBRARY_PATH")


class Warm:
    """The process to fork from, and its end of a socket. Its programs see `env` and little else of this process's environment."""

    def __init__(self):
        self._socket, theirs = socket.socketpair()
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        settings = {name: os.environ[name] for name in _SETTINGS if name in os.environ}
        self.env = {**settings, "OMP_NUM_THREADS": "1", "GLOG_minloglevel": "1", "PYTHONPATH": path}
        command = [sys.executable, "-m", "tests.warm", str(theirs.fileno())]
        self._process = subprocess.Popen(command, env=self.env, pass_fds=[theirs.fileno()], cwd=ROOT)
        theirs.close()

    def start(self, command: list, folder: Path, **env: str) -> Program:
        """Run `python *command` in `folder`; what it says on stderr goes to folder/stderr."""
        ours, theirs = socket.socketpair()
        (folder / "stderr").unlink(missing_ok=True)
        request = {"command": [str(word) for word in command], "env": {**self.env, **env}, "cwd": str(folder)}
        with theirs, open(folder / "stderr", "ab") as said:
            socket.send_fds(self._socket, [json.dumps(request).encode()], [theirs.fileno(), said.fileno()])
        return Program(ours)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()
        self._process.wait()


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

    def wait(self, timeout: float) -> int:
        if self.returncode is None and not select.select([self._answers], [], [], timeout)[0]:
            raise TimeoutError(f"still at work after {timeout} s")
        return self.poll()

    def _read_line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            line += self._answers.recv(1)
        return line


def lines(folder: Path) -> list[str]:
    """What plsc-run itself has said in `folder`, without the time."""
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


def all_ended(folder: Path, seconds: float) -> bool:
    """Whether nothing that was started in `folder` is left after so many seconds at most."""
    end = time.monotonic() + seconds
    while processes(folder):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


# -- in the warm process ------------------------------------------------------------------------------------------------------


class Forked(subprocess.Popen):
    """Popen that forks this process for `python [-u] script.py ...` and `python -m paddle.distributed.launch ...`."""

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
        self.pid = os.fork()
        if not self.pid:
            _become(words[1:], **keywords)


def _become(
    command,
    env=None,
    stdout=None,
    stderr=None,
    preexec_fn=None,
    start_new_session=False,
    cwd=None,
    shell=False,
):
    """What exec does, as far as it matters here; never returns."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in ((1, stdout), (2, stderr)):
        if stream is not None:
            os.dup2(stream.fileno(), number)
    os.closerange(3, 256)
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
    if cwd is not None:
        os.chdir(cwd)
    if start_new_session:
        os.setsid()
    if preexec_fn:
        preexec_fn()
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


def _keep(request: dict, answers: int, said: int) -> None:
    """Start the program of a request, say its process and, when it has ended, its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(os.devnull, "w") as nothing, open(said, "w") as stderr:
        command = [sys.executable, *request["command"]]
        streams = {"stdout": nothing, "stderr": stderr}
        child = Forked(command, env=request["env"], cwd=request["cwd"], start_new_session=True, **streams)
    os.write(answers, f"{child.pid}\n".encode())
    os.write(answers, f"{child.wait()}\n".encode())
    os._exit(0)


def main(number: int) -> None:
    import paddle.distributed.launch.main  # noqa: F401
    import visualdl  # noqa: F401

    import plsc.report
    import plsc.results
    import plsc.supervisor
    import plsc.trainer

    plsc.report.draw = lambda *_: []
    plsc.supervisor._PAUSE = 0
    assert threading.active_count() == 1
    assert "\nThreads:\t1\n" in Path("/proc/self/status").read_text(), "a fork would inherit locks"
    subprocess.Popen = Forked
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended keepers vanish by themselves
    with socket.socket(fileno=number) as requests:
        while True:
            text, descriptors, _, _ = socket.recv_fds(requests, 1 << 16, 2)
            if not text:
                return
            if not os.fork():
                _keep(json.loads(text), *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)


if __name__ == "__main__":
    main(int(sys.argv[1]))
