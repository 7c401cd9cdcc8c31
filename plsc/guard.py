"""What a training rank does about its own end: it stops when asked, says why it failed, and is nobody's orphan.

A signal only sets a flag here; the trainer lets the ranks agree on the step, saves, and leaves. Under `plsc-run` each rank leaves
files in output_dir/errors, by which plsc.postmortem tells who failed first: rank{r}.alive (process and step, gone after an orderly
end), rank{r}.json (the exception, or that it was stopped), rank{r}.trace (where it was stuck or crashed). Knows no paddle.

Try it: `kill -TERM` a rank of a training; all ranks save the same step and end with 0.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import IO, Any

from plsc import lock
from plsc.atomic_write import replace_file
from plsc.environment import rank_from_env
from plsc.errors import UserError

SUPERVISOR = "PLSC_RUN_PID"  # in the environment of whatever plsc-run starts
LOCKED = "PLSC_RUN_LOCK"  # the folder whose lock it holds for them
STOPPING = (signal.SIGTERM, signal.SIGINT)
PATIENCE = 6  # times hang_seconds for what is no step: start, evaluation, saving, report
_WIDTH = 200  # of the text in rank{r}.alive, which is overwritten in place
_PR_SET_PDEATHSIG = 1


class Guard:
    """Around the training of one rank: `with Guard(folder, hang_seconds) as guard`. Guard() alone is idle.

    Args:
        folder: Global.output_dir.
        hang_seconds: in a launch, a rank whose step takes longer says where it is and ends with 1; 0: never.

    Attributes: `signal`, number of the signal that asks to stop, 0 = none; `stopped`, its name once all ranks have saved; `step`, how
    many are done; `supervised`, whether plsc-run started this rank.

    Entering takes the folder's lock (rank 0, unless the supervisor has it): UserError if another run has it.
    """

    def __init__(self, folder: Path | None = None, hang_seconds: float = 0):
        self.folder = folder
        self.signal, self.stopped, self.step = 0, None, 0
        launched = folder is not None and "PADDLE_TRAINER_ID" in os.environ
        self._launched, self.supervised = launched, launched and SUPERVISOR in os.environ
        self._seconds = hang_seconds if launched else 0
        self._armed: tuple[float, float] = (0.0, 0.0)  # for how long, when
        self._exit = contextlib.ExitStack()
        self._alive: IO[bytes] | None = None
        self._trace: IO[str] = sys.stderr

    def __enter__(self):
        if self._launched:
            die_with_parent()
        if rank_from_env() == 0 and os.environ.get(LOCKED) != str(self.folder.resolve()):
            self._exit.enter_context(lock.hold(self.folder))
        return self

    def listen(self) -> None:
        """From here on a signal waits for the next step. To be called after importing Paddle, which sets handlers of its own."""
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                self._exit.callback(signal.signal, number, signal.signal(number, self._ask))
                signal.siginterrupt(number, False)  # Paddle's store does not retry an interrupted receive
        if self.supervised:
            (self.folder / "errors").mkdir(exist_ok=True)
            for kind in ("json", "trace"):
                self._file(kind).unlink(missing_ok=True)
            self._trace = self._exit.enter_context(open(self._file("trace"), "w"))  # noqa: SIM115
            faulthandler.enable(self._trace)
            self._exit.callback(faulthandler.disable)
            faulthandler.register(signal.SIGUSR1, self._trace)
            self._exit.callback(faulthandler.unregister, signal.SIGUSR1)
            self._alive = self._exit.enter_context(open(self._file("alive"), "wb", 0))  # noqa: SIM115
            self._exit.callback(self._file("alive").unlink, missing_ok=True)
        self.beat(0)
        self.rest()

    def beat(self, step: int) -> None:
        """`step` is done, and the next one begins. Costs microseconds."""
        self.step = step
        if self._alive:
            text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "step": step})
            os.pwrite(self._alive.fileno(), text.ljust(_WIDTH).encode(), 0)
        self._arm(self._seconds)

    def rest(self) -> None:
        """What follows is no step and may take longer."""
        self._arm(PATIENCE * self._seconds)

    def _arm(self, seconds: float) -> None:
        before, when = self._armed
        if seconds and (seconds != before or time.monotonic() > when + seconds / 20):
            self._armed = seconds, time.monotonic()
            faulthandler.dump_traceback_later(seconds, exit=True, file=self._trace)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._seconds:
            faulthandler.cancel_dump_traceback_later()
        try:
            if self._launched and (error is not None or self.stopped):
                said = failure(error) if error is not None else {"stopped": self.stopped}
                whose = {"rank": rank_from_env(), "host": socket.gethostname(), "pid": os.getpid()}
                record = {"time": time.time(), **whose, "step": self.step, **said}
                (self.folder / "errors").mkdir(parents=True, exist_ok=True)
                replace_file(self._file("json"), json.dumps(record, indent=1).encode())
        finally:
            self._exit.close()

    def _file(self, kind: str) -> Path:
        return self.folder / "errors" / f"rank{rank_from_env()}.{kind}"

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if number == self.signal == signal.SIGINT:
            raise KeyboardInterrupt  # asked twice: at once, then
        self.signal = number


def failure(error: BaseException) -> dict[str, Any]:
    """An exception in a few words: {"type", "message" (one line), "user" (the user can mend it), "where"}."""
    text = str(error).rpartition("Error Message Summary:")[2]  # Paddle's own has a C++ traceback before it
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    message = " ".join(text.strip(" -\n").split())[:500]
    return {
        "type": type(error).__name__,
        "message": message,
        "user": isinstance(error, UserError),
        "where": where,
    }


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that started it ends, however it ends. Linux only, else nothing.

    A launcher that is killed would leave its ranks running to the end, each in a session of its own.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    supervisor = os.environ.get(SUPERVISOR)
    if supervisor and not Path(f"/proc/{supervisor}").exists():
        sys.exit("ERROR plsc-run has ended before this rank began")  # it was too late for the kernel to tell
