"""Turn what a command raises into lines on stderr and an exit code."""

import errno
import os
import signal
import sys
from collections.abc import Callable

from plsc.distributed import environment
from plsc.errors import UserError, escape_lines

# What the machine refuses readers and writers of many kinds, no defects of ours -> what to do about it.
_REMEDIES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "change its rights, or name another folder"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space there, or name another folder"),
    errno.EFBIG: "name a folder on another file system, or raise the limit (ulimit -f)",
    errno.ENAMETOOLONG: "give it a shorter name",
    errno.ENETUNREACH: "bring the loopback interface up (ip link set lo up)",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}
_HEAD_START = 3.0  # seconds that the first rank has, to print the mistake that another has printed


def ignore_the_launcher() -> None:
    """Ignore the launcher's SIGTERM to all ranks when one ends: this rank has an exit code of its own."""
    if "PADDLE_TRAINER_ID" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _wait_for_the_first_rank() -> None:
    """Wait until the launcher ends this rank, some seconds at most, unless it is the first one of its
    machine.

    The launcher shows what the first rank prints. It ends all ranks as soon as one has ended, also a first
    rank that is slower, and has not yet come to the mistake that they all have.
    """
    if os.environ.get("PADDLE_LOCAL_RANK", "0") != "0":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        signal.sigtimedwait([signal.SIGTERM], _HEAD_START)


def without_traceback(act: Callable[[], int | None], debug: bool = False) -> int:
    """Return the exit code of `act`; after a UserError print its lines and return 2; after Ctrl-C 130.

    An OSError of the machine, such as a full disk, is one line and 2, too.

    Where nobody reads stdout any more (`plsc ckpt list run | head -1`) end silently with 141, as other
    programs do.
    """
    environment.before_paddle()
    if hasattr(sys.stdout, "reconfigure"):  # a caller may have replaced sys.stdout
        sys.stdout.reconfigure(errors="backslashreplace")  # file names that are not UTF-8
    try:
        code = act() or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what Python still writes when it ends
        return 128 + signal.SIGPIPE
    except (UserError, OSError) as error:
        if debug or not (isinstance(error, UserError) or error.errno in _REMEDIES):
            raise
        ignore_the_launcher()
        lines = str(error).split("\n")
        if not isinstance(error, UserError):
            where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
            lines = [f"{where}{error.strerror}; {_REMEDIES[error.errno]}"]
        for line in lines:
            print(f"ERROR {escape_lines(line)}", file=sys.stderr, flush=True)
        _wait_for_the_first_rank()
        return 2
    except KeyboardInterrupt:
        if debug:
            raise
        print("ERROR interrupted", file=sys.stderr, flush=True)
        return 128 + signal.SIGINT
