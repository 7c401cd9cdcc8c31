"""Stop a training rank on a signal, record why it failed, and end it with its launcher.

A signal only sets a flag; the trainer lets the ranks agree on the step, saves, and ends. A second signal ends
the process at once, even if it is blocked. A signal that was ignored when the process began (nohup) stays
ignored. Under `plsc run` each rank writes files in output_dir/errors, from which
plsc.apps.supervise.postmortem finds the rank that failed first: rank{r}.alive (process and step, removed
after an orderly end), rank{r}.json (the exception, or the stop), rank{r}.trace (where it was stuck or
crashed), rank{r}.calls (how many collectives it has begun). Imports no Paddle.

Try it: `kill -TERM` a rank of a training; all ranks save the same step and end with 143.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO, Any

from plsc.distributed import calls, lock
from plsc.distributed.environment import machine_name, rank_from_env
from plsc.errors import UserError
from plsc.utils.atomic_write import remove, replace_file

SUPERVISOR = "PLSC_RUN_PID"  # in the environment of all processes that plsc run starts
LOCKED = "PLSC_RUN_LOCK"  # the folder whose lock plsc run holds for them
STOPPING = (signal.SIGTERM, signal.SIGINT)
PATIENCE = 6  # times hang_seconds outside of steps: start, evaluation, saving, report
APART = 2.0  # seconds: a further SIGTERM within these is the launcher's, which repeats it
_GRACE = 2.0  # seconds for the KeyboardInterrupt of a second Ctrl-C to end the process
_WIDTH = 200  # of the text in rank{r}.alive, which is overwritten in place
_RESERVED = 16384  # bytes of each file that a rank may leave, taken before the disk is full
_PR_SET_PDEATHSIG = 1
# Looked up here: after a fork of a process with threads, one of them may have held the lock that looking up
# takes.
_prctl = ctypes.CDLL(None).prctl if sys.platform.startswith("linux") else None


class Guard:
    """A context for the training of one rank: `with Guard(folder, hang_seconds) as guard`; Guard() is idle.

    Args:
        folder: Global.output_dir.
        hang_seconds: in a launch, a rank whose step takes longer writes its stack and ends with 1; 0: never.

    Attributes:
        signal: number of the signal that asks to stop, 0 = none.
        stopped: the name of that signal once all ranks have saved.
        step: steps done.
        supervised: whether plsc run started this rank.

    Entering takes the folder's lock (rank 0, unless the supervisor has it): UserError if another run has it.
    """

    def __init__(self, folder: Path | None = None, hang_seconds: float = 0):
        self.folder = folder
        self.signal = 0
        self.stopped = None
        self.step = 0
        launched = folder is not None and "PADDLE_TRAINER_ID" in os.environ
        self._launched = launched
        self.supervised = launched and SUPERVISOR in os.environ
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
        """Handle signals at the end of a step from now on.

        Call it after importing Paddle, which sets handlers of its own.
        """
        if threading.current_thread() is threading.main_thread():
            self._exit.enter_context(_second_signal(self._end_now))
            for number in STOPPING:
                if signal.getsignal(number) is signal.SIG_IGN:
                    continue
                self._exit.callback(signal.signal, number, signal.signal(number, self._ask))
                signal.siginterrupt(number, False)  # Paddle's store does not retry an interrupted receive
        if self.supervised:
            try:
                (self.folder / "errors").mkdir(exist_ok=True)
            except FileExistsError:
                raise UserError(f"{self.folder / 'errors'}: is no folder; remove it") from None
            for kind in ("json", "reserved", "trace", "alive", "calls"):
                remove(self._file(kind))  # whatever has that name: no link is followed, no pipe opened
            self._file("reserved").write_bytes(bytes(_RESERVED))
            self._exit.callback(self._file("reserved").unlink, missing_ok=True)
            self._file("trace").write_text("\n" * _RESERVED)
            self._trace = self._exit.enter_context(open(self._file("trace"), "r+"))  # noqa: SIM115
            faulthandler.enable(self._trace)
            self._exit.callback(faulthandler.disable)
            faulthandler.register(signal.SIGUSR1, self._trace)
            self._exit.callback(faulthandler.unregister, signal.SIGUSR1)
            self._exit.callback(self._file("calls").unlink, missing_ok=True)
            self._exit.enter_context(calls.keep_in(self._file("calls")))
            self._alive = self._exit.enter_context(open(self._file("alive"), "wb", 0))  # noqa: SIM115
            self._exit.callback(self._file("alive").unlink, missing_ok=True)
        self.step_started(0)
        self.allow_pause()

    def step_started(self, step: int) -> None:
        """Note that `step` is done and the next one begins. Takes microseconds."""
        self.step = step
        if self._alive:
            text = json.dumps({"pid": os.getpid(), "host": machine_name(), "step": step})
            os.pwrite(self._alive.fileno(), text.ljust(_WIDTH).encode(), 0)
        self._arm(self._seconds)

    def allow_pause(self) -> None:
        """Allow more time for what follows, which is not a step."""
        self._arm(PATIENCE * self._seconds)

    def stop(self, name: str) -> None:
        """Note that all ranks have saved because of the signal `name`, and end."""
        self.stopped = name

    def _arm(self, seconds: float) -> None:
        before, when = self._armed
        if seconds and (seconds != before or time.monotonic() > when + seconds / 20):
            self._armed = seconds, time.monotonic()
            try:
                faulthandler.dump_traceback_later(seconds, exit=True, file=self._trace)
            except RuntimeError as error:
                # Without memory for its thread; this error must not hide that of whoever wants the memory.
                print(f"WARNING a hang would not be noticed now: {error}", file=sys.stderr, flush=True)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._seconds:
            faulthandler.cancel_dump_traceback_later()
        try:
            if error is not None or self.stopped:
                self._record(failure(error) if error is not None else {"stopped": self.stopped})
        finally:
            self._exit.close()

    def _record(self, fields: dict[str, Any]) -> None:
        """Write rank{r}.json in a launch, into the reserved file if there is one: the disk may be full."""
        if not self._launched:
            return
        whose = {"rank": rank_from_env(), "host": machine_name(), "pid": os.getpid()}
        text = json.dumps({"time": time.time(), **whose, "step": self.step, **fields}, indent=1)
        try:
            (self.folder / "errors").mkdir(parents=True, exist_ok=True)
            reserved = self._file("reserved")
            if not reserved.exists():
                replace_file(self._file("json"), text.encode())
                return
            with open(reserved, "r+b") as file:
                file.write(text.encode().ljust(_RESERVED))
            os.replace(reserved, self._file("json"))
        except OSError as error:
            print(f"ERROR {self._file('json')} cannot be written: {error}", file=sys.stderr, flush=True)

    def _end_now(self, number: int) -> None:
        """End the process on a second signal; called in another thread, since the main one may be blocked."""
        stack = traceback.extract_stack(sys._current_frames()[threading.main_thread().ident])
        where = f"{stack[-1].filename}:{stack[-1].lineno}"
        text = (
            f"ended by a second {signal.Signals(number).name} in {where}, step {self.step} is not saved by it"
        )
        with contextlib.suppress(OSError):
            print(f"ERROR {text}", file=sys.stderr, flush=True)
        name = signal.Signals(number).name  # a consequence: whoever failed first did not end by it
        self._record(
            {"type": "KeyboardInterrupt", "message": text, "user": False, "where": where, "ended_by": name}
        )
        os._exit(exit_code(number))

    def _file(self, kind: str) -> Path:
        return self.folder / "errors" / f"rank{rank_from_env()}.{kind}"

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C: end at once
        self.signal = number


def exit_code(number: int) -> int:
    """Return the exit code of a program stopped by a signal, as in shells: 130 for SIGINT, 143 for
    SIGTERM."""
    return 128 + number


def stopped_on(code: int) -> str | None:
    """Return the name of the signal that an exit code stands for; None for any other code."""
    return next((number.name for number in STOPPING if code == exit_code(number)), None)


@contextlib.contextmanager
def _second_signal(end: Callable[[int], None]) -> Iterator[None]:
    """Call `end(number)` when a second signal of STOPPING comes.

    A thread waits for it, since a main thread that is blocked in the kernel runs no handler. A SIGTERM soon
    after the first signal is ignored. A second SIGINT raises KeyboardInterrupt in the handler, which has time
    to end the process first.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    done = threading.Event()

    def watch() -> None:
        first = None
        while numbers := os.read(reading, 64):
            for number in numbers:
                now = time.monotonic()
                if number not in STOPPING:
                    continue
                if first is None:
                    first = now
                elif (number == signal.SIGINT and not done.wait(_GRACE)) or now > first + APART:
                    end(number)
        os.close(reading)

    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=watch, name="plsc-signals", daemon=True).start()
    try:
        yield
    finally:
        done.set()
        signal.set_wakeup_fd(before)
        os.close(writing)


def failure(error: BaseException) -> dict[str, Any]:
    """Describe an exception: {"type", "message" (one line), "user" (a UserError), "where"}."""
    # Paddle's own errors begin with a C++ traceback, and have a line of dashes above their message.
    _, of_paddle, text = str(error).rpartition("Error Message Summary:")
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    message = " ".join((text.strip(" -\n") if of_paddle else text).split())[:500]
    return {
        "type": type(error).__name__,
        "message": message,
        "user": isinstance(error, UserError),
        "where": where,
    }


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends for any reason. Linux only.

    Otherwise the ranks of a killed launcher, each in a session of its own, would run on.
    """
    if _prctl is None:
        return
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    supervisor = os.environ.get(SUPERVISOR)
    if supervisor and not Path(f"/proc/{supervisor}").exists():
        sys.exit("ERROR plsc run has ended before this rank began")  # before the call above
