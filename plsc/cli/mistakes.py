"""Turn a command's exception into lines on stderr and an exit code."""

import errno
import os
import signal
import sys
from collections.abc import Callable

from plsc.distributed import environment, peers
from plsc.errors import UserError, escape_lines, in_one_line

# Errors of the machine, which are not defects of plsc -> the remedy.
_REMEDIES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "change its rights, or name another folder"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space there, or name another folder"),
    errno.EFBIG: "name a folder on another file system, or raise the limit (ulimit -f)",
    errno.ENAMETOOLONG: "give it a shorter name",
    **dict.fromkeys((errno.EISDIR, errno.ENOTDIR), "move what is there, or name another folder"),
    errno.ENETUNREACH: "bring the loopback interface up (ip link set lo up)",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}
_HEAD_START = 3.0  # seconds for the first rank to print the mistake that another rank has printed


def ignore_the_launcher() -> None:
    """Ignore the SIGTERM that the launcher sends to all ranks when one ends: this rank has its own exit
    code."""
    if "PADDLE_TRAINER_ID" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _wait_for_the_first_rank() -> None:
    """Wait a few seconds for the launcher to end this rank, unless this is its machine's first rank.

    The launcher shows only the first rank's output, and ends all ranks as soon as one has ended. If the
    first rank is slower, it would end before it has printed the mistake that all ranks have.
    """
    if os.environ.get("PADDLE_LOCAL_RANK", "0") != "0":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        signal.sigtimedwait([signal.SIGTERM], _HEAD_START)


def without_traceback(act: Callable[[], int | None], debug: bool = False, of_all_ranks: bool = False) -> int:
    """Call `act`, and return its exit code.

    After a UserError it prints the error's lines and returns 2. After the machine's own OSError, such as a
    full disk, it prints one line and returns 2, too. After Ctrl-C it returns 130. If nobody reads stdout any
    more (`plsc ckpt inspect ... | head -1`), it returns 141 without a message, as other programs do.

    Args:
        act: what the command does.
        debug: show the traceback instead of the lines.
        of_all_ranks: whether other machines' ranks wait for this one. If it fails before it has met them,
            they get its mistake, and end, too.
    """
    environment.set_variables()
    tell = peers.tell_other_machines if of_all_ranks else lambda problem: None
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
            tell(in_one_line(error))
            raise
        ignore_the_launcher()
        lines = str(error).split("\n")
        if not isinstance(error, UserError):
            where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
            lines = [f"{where}{error.strerror}; {_REMEDIES[error.errno]}"]
        for line in lines:
            print(f"ERROR {escape_lines(line)}", file=sys.stderr, flush=True)
        tell(lines[0] + (f" (and {len(lines) - 1} more)" if lines[1:] else ""))
        _wait_for_the_first_rank()
        return 2
    except Exception as error:
        tell(in_one_line(error))
        raise
    except SystemExit as error:
        if error.code == 2:  # argparse has printed the reason
            tell("its command line is wrong, see its log")
        raise
    except KeyboardInterrupt:
        if debug:
            raise
        print("ERROR interrupted", file=sys.stderr, flush=True)
        return 128 + signal.SIGINT
