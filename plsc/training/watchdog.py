"""Stop a training rank on a signal, report why it failed, and end it with its launcher.

A signal only sets a flag. The trainer then lets the ranks agree on the step, saves, and ends. A second Ctrl-C
ends the process at once. A signal that was ignored when the process began (nohup) stays ignored. Each rank in
a launch has a file output_dir/log/rank{r}.txt. It contains the number of finished steps, or after a failure
the reason. This module does not import Paddle.

Try it: `kill -TERM` a rank in a training. All ranks save the same step and end.
"""

import contextlib
import faulthandler
import math
import os
import re
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType

from plsc.distributed import lock, peers
from plsc.distributed.environment import local_size_from_env, rank_from_env, world_size_from_env
from plsc.distributed.launcher import die_with_parent
from plsc.errors import UserError, escape

# Variable in the ranks' environment: process id of the `plsc train --ranks N` above them, which reports why
# they fail.
SUPERVISOR = "PLSC_SUPERVISOR"
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Exit code of a rank that ends because another rank was lost, or because this rank itself hangs. Kubeflow
# restarts a pod if its exit code is 128 or higher. It is not the exit code of `plsc train --ranks N`, which
# restarts its ranks, and returns 1 if it gives up.
LOST = 138
PATIENCE = 6  # multiple of hang_seconds outside steps: start, evaluation, saving, report
_LOST_PEER = re.compile(
    r"gloo|nccl|tcp_utils|TCP (send|receive)|only \d+ of \d+ ranks|TCPStore|connection (reset|closed) by peer"
    r"|CustomDevice error",
    re.IGNORECASE,
)


class Watchdog:
    """A context in which one rank trains: `with Watchdog(folder, hang_seconds) as watchdog`.

    Watchdog() without a folder does nothing.

    Args:
        folder: Global.output_dir.
        hang_seconds: in a launch, a rank whose step takes longer reports this and ends. 0 turns this off.

    Attributes:
        signal: number of the signal that asks to stop, or 0.
        step: finished steps.
        problem: on several machines, why rank 0 could not take the folder's lock. The caller delivers it to
            all ranks. None if rank 0 has the lock.

    On entry rank 0 takes the folder's lock, unless the supervisor has it, and raises UserError if another run
    has it. On several machines it keeps the error in `problem`, since the other machines' ranks wait for
    this one. A thread then ends this rank if it hangs or if another rank is lost. In a launch another rank's
    failure becomes SystemExit with code LOST. Under a supervisor every exception becomes SystemExit,
    with code 2 for a user's mistake.
    """

    def __init__(self, folder: Path | None = None, hang_seconds: float = 0):
        self.folder = folder
        self.signal = 0
        self.step = 0
        self.problem: UserError | None = None
        self._launched = folder is not None and "PADDLE_TRAINER_ID" in os.environ
        self._supervised = self._launched and SUPERVISOR in os.environ
        self._seconds = hang_seconds if self._launched and hang_seconds else math.inf
        self._deadline = math.inf
        self._ended = threading.Event()
        self._reported = threading.Lock()  # held by the thread that reports this rank's end
        self._exit = contextlib.ExitStack()
        self._message_file = message_file(folder, rank_from_env()) if self._launched else None
        self._descriptor: int | None = None  # in that file

    def __enter__(self):
        if self._launched:
            die_with_parent()
        if rank_from_env() == 0 and not self._supervised:
            try:
                self._exit.enter_context(lock.hold(self.folder))
            except UserError as error:
                if world_size_from_env() == local_size_from_env():
                    raise
                self.problem = (
                    error  # raised once the ranks have met, since other machines' ranks wait for this
                )
        if self._launched:
            self.allow_pause()
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def listen(self) -> None:
        """From now on, handle signals after each step.

        Call it after importing Paddle, which sets its own handlers.
        """
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._exit.callback(signal.signal, number, signal.signal(number, self._ask))
                    signal.siginterrupt(number, False)  # Paddle's store does not retry an interrupted receive
        if self._launched:
            self._message_file.parent.mkdir(parents=True, exist_ok=True)
            file = self._exit.enter_context(open(self._message_file, "wb", 0))  # noqa: SIM115
            self._descriptor = file.fileno()
        self.step_started(0)
        self.allow_pause()

    def step_started(self, step: int) -> None:
        """Record that `step` is done and the next one begins. Takes microseconds."""
        self.step = step
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # a disk that fails costs a message, not the run
                os.pwrite(self._descriptor, str(step).encode(), 0)
        self._deadline = time.monotonic() + self._seconds

    def allow_pause(self) -> None:
        """Allow more time until the next step begins."""
        self._deadline = time.monotonic() + PATIENCE * self._seconds

    def _watch(self) -> None:
        """End this process if a step takes too long, or if another rank is lost."""
        while not self._ended.wait(0.5):
            if lost := peers.lost():
                self._end(f"rank {rank_from_env()} stopped {self._when()}: {lost}")
            if time.monotonic() > self._deadline:
                self._end(f"rank {rank_from_env()} took too long {self._when()} (Global.hang_seconds)")

    def _end(self, text: str) -> None:
        """Report why this rank ends, and end it without its main thread, which waits."""
        if not self._reported.acquire(blocking=False):
            return  # the main thread has its own error
        where = ""
        with contextlib.suppress(OSError):  # a rank ends even if its log cannot be written
            self._message_file.parent.mkdir(parents=True, exist_ok=True)
            with open(self._message_file, "w", encoding="utf-8") as file:
                print(text, file=file, flush=True)
                faulthandler.dump_traceback(file)
            where = f"; where it waits is in {self._message_file}"
        if not self._supervised:
            print(f"ERROR {text}{where}", file=sys.stderr, flush=True)
        os._exit(LOST)

    def _when(self) -> str:
        return f"in step {self.step + 1}" if self.step else "before its first step was done"

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        try:
            if self._launched and error is None:
                with contextlib.suppress(OSError):
                    self._message_file.unlink(missing_ok=True)
            if self._launched and isinstance(error, Exception):
                self._report_failure(error)
        finally:
            self._exit.close()

    def _report_failure(self, error: Exception) -> None:
        """If a supervisor runs, or if another rank was lost, write to rank{r}.txt why this rank fails, and
        end it."""
        user = isinstance(error, UserError)
        lost = not user and (isinstance(error, peers.LostRankError) or _LOST_PEER.search(str(error)))
        if not (self._supervised or lost):
            return
        if not self._reported.acquire(blocking=False):
            time.sleep(60)  # the watching thread has reported it, and ends this process
        text, where = self._line(error), f"; the traceback is in {self._message_file}"
        if lost and not isinstance(error, peers.LostRankError):
            text += _lost_rank()  # a collective's message often names no rank
        try:
            if lost:
                self._message_file.parent.mkdir(parents=True, exist_ok=True)
            words = text if user else f"{text}\n{''.join(traceback.format_exception(error))}"
            self._message_file.write_text(words, encoding="utf-8", errors="backslashreplace")
        except OSError:
            if not lost:
                return
            where = ""
        if not self._supervised:
            print(f"ERROR {text}{where}", file=sys.stderr, flush=True)
        raise SystemExit(LOST if lost else 2 if user else 1) from error

    def _line(self, error: Exception) -> str:
        """Describe an exception with rank and step."""
        rank, step = rank_from_env(), self.step
        if isinstance(error, UserError):
            return f"rank {rank}, step {step + 1}: {error}" if step else str(error)
        # Paddle's own errors begin with a C++ traceback. A line of dashes precedes their message.
        _, of_paddle, text = str(error).rpartition("Error Message Summary:")
        text = " ".join((text.strip(" -\n") if of_paddle else text).split())
        if isinstance(error, peers.LostRankError):
            return f"rank {rank} stopped {self._when()}: {error}"
        remedy = "; lower DataLoader.Train.batch_size" if isinstance(error, MemoryError) else ""
        return escape(f"rank {rank} failed {self._when()}: {type(error).__name__}: {text[:500]}{remedy}")

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C: end at once
        self.signal = number


def _lost_rank() -> str:
    """Return "; rank 0 has ended", or "". A collective may fail before `peers` notices the loss."""
    give_up = time.monotonic() + 2
    while not (gone := peers.gone()) and time.monotonic() < give_up:
        time.sleep(0.05)
    return f"; {gone}" if gone else ""


def message_file(folder: Path, rank: int) -> Path:
    """Return the file in which a rank reports its last step and why it failed. folder: Global.output_dir."""
    return folder / "log" / f"rank{rank}.txt"
