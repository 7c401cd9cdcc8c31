"""Stop a training rank on a signal, record why it failed, and end it with its launcher.

A signal only sets a flag; the trainer lets the ranks agree on the step, saves, and ends. A second Ctrl-C ends
the process at once. A signal that was ignored when the process began (nohup) stays ignored. Under `plsc train
--ranks N` each rank writes two files in output_dir/errors, by which plsc.apps.restart finds the rank that
failed first: rank{r}.alive (process and step, removed after an orderly end) and rank{r}.json (the exception).
Imports no Paddle.

Try it: `kill -TERM` a rank of a training; all ranks save the same step and end.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import IO, Any

from plsc.distributed import lock
from plsc.distributed.environment import rank_from_env
from plsc.errors import UserError
from plsc.utils.atomic_write import replace_file

# In the environment of ranks: the process of the `plsc train --ranks N` above them.
SUPERVISOR = "PLSC_SUPERVISOR"
STOPPING = (signal.SIGTERM, signal.SIGINT)
PATIENCE = 6  # times hang_seconds outside of steps: start, evaluation, saving, report
_WIDTH = 100  # of the text in rank{r}.alive, which is overwritten in place
_PR_SET_PDEATHSIG = 1
# Looked up here: after a fork of a process with threads, one of them may have held the lock that looking up
# takes.
_prctl = ctypes.CDLL(None).prctl


class Guard:
    """A context for the training of one rank: `with Guard(folder, hang_seconds) as guard`; Guard() is idle.

    Args:
        folder: Global.output_dir.
        hang_seconds: in a launch, a rank whose step takes longer writes its stack and ends with 1; 0: never.

    Attributes:
        signal: number of the signal that asks to stop, 0 = none.
        step: steps done.

    Entering takes the folder's lock (rank 0, unless the supervisor has it): UserError if another run has it.
    Under a supervisor, which says why, an exception becomes SystemExit: 2 for a user's mistake, else 1.
    """

    def __init__(self, folder: Path | None = None, hang_seconds: float = 0):
        self.folder = folder
        self.signal = 0
        self.step = 0
        self._launched = folder is not None and "PADDLE_TRAINER_ID" in os.environ
        self._supervised = self._launched and SUPERVISOR in os.environ
        self._seconds = hang_seconds if self._launched else 0
        self._armed: tuple[float, float] = (0.0, 0.0)  # for how long, when
        self._exit = contextlib.ExitStack()
        self._alive: IO[bytes] | None = None

    def __enter__(self):
        if self._launched:
            die_with_parent()
        if rank_from_env() == 0 and not self._supervised:
            self._exit.enter_context(lock.hold(self.folder))
        return self

    def listen(self) -> None:
        """Handle signals at the end of a step from now on.

        Call it after importing Paddle, which sets handlers of its own.
        """
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                if signal.getsignal(number) is signal.SIG_IGN:
                    continue
                self._exit.callback(signal.signal, number, signal.signal(number, self._ask))
                signal.siginterrupt(number, False)  # Paddle's store does not retry an interrupted receive
        if self._supervised:
            self._alive = self._exit.enter_context(open(self._file("alive"), "wb", 0))  # noqa: SIM115
            self._exit.callback(self._file("alive").unlink, missing_ok=True)
        self.step_started(0)
        self.allow_pause()

    def step_started(self, step: int) -> None:
        """Note that `step` is done and the next one begins. Takes microseconds."""
        self.step = step
        if self._alive:
            text = json.dumps({"pid": os.getpid(), "step": step})
            os.pwrite(self._alive.fileno(), text.ljust(_WIDTH).encode(), 0)
        self._arm(self._seconds)

    def allow_pause(self) -> None:
        """Allow more time for what follows, which is not a step."""
        self._arm(PATIENCE * self._seconds)

    def _arm(self, seconds: float) -> None:
        before, when = self._armed
        if seconds and (seconds != before or time.monotonic() > when + seconds / 20):
            self._armed = seconds, time.monotonic()
            faulthandler.dump_traceback_later(seconds, exit=True)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._seconds:
            faulthandler.cancel_dump_traceback_later()
        try:
            if error is not None and self._supervised and self._record(error):
                raise SystemExit(2 if isinstance(error, UserError) else 1) from error
        finally:
            self._exit.close()

    def _record(self, error: BaseException) -> bool:
        """Write rank{r}.json; return whether that went well, which it does not on a full disk."""
        facts = {"time": time.time(), "step": self.step, **describe(error)}
        try:
            replace_file(self._file("json"), json.dumps(facts, indent=1).encode())
        except OSError:
            return False
        return True

    def _file(self, kind: str) -> Path:
        return self.folder / "errors" / f"rank{rank_from_env()}.{kind}"

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C: end at once
        self.signal = number


def describe(error: BaseException) -> dict[str, Any]:
    """Describe an exception: {"type", "message", "user" (a UserError), "traceback"}."""
    # Paddle's own errors begin with a C++ traceback, and have a line of dashes above their message.
    _, of_paddle, text = str(error).rpartition("Error Message Summary:")
    user = isinstance(error, UserError)
    return {
        "type": type(error).__name__,
        "message": text if user else " ".join((text.strip(" -\n") if of_paddle else text).split()),
        "user": user,
        "traceback": "".join(traceback.format_exception(error)),
    }


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends for any reason.

    Otherwise the ranks of a killed launcher, each in a session of its own, would run on.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    supervisor = os.environ.get(SUPERVISOR)
    if supervisor and not Path(f"/proc/{supervisor}").exists():  # it ended before the call above
        sys.exit("ERROR plsc train has ended before this rank began")
