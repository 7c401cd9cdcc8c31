"""Prepare a process's environment before Paddle computes: threads per rank and the BLAS code path.

Importing Paddle sets OMP_NUM_THREADS=1, and the launcher sets it for its ranks. Without a correction a rank
on a large machine uses one core. Paddle's BLAS takes a slow path on AMD processors unless
MKL_DEBUG_CPU_TYPE=5 is in the environment before the first matrix product. We measured it to be 2.3 to 2.7
times slower. The user's settings are never overridden.
"""

import logging
import os
import re
import sys
import tempfile
import warnings
from pathlib import Path

from plsc.errors import UserError, writing

AUTO = "auto"
CPU = "cpu"
GPU = "gpu"
DEVICES = r"auto|cpu|(?!auto|cpu)[a-z][a-z0-9_]*(:\d+)?"  # Global.device's pattern

# Warnings that Paddle gives at every start and that a user cannot act on.
_NUISANCES = (
    "When training, we now always track",
    "Current global rank .* is not in group",
)


def before_paddle() -> None:
    """Call `set_variables`, and refuse a home folder with which Paddle cannot be imported.

    Call it before Paddle is imported. Raises UserError.
    """
    set_variables()
    if "paddle" in sys.modules:
        return
    home = os.path.expanduser("~")
    if not os.access(home, os.W_OK):
        home = tempfile.gettempdir()  # Paddle's choice, too
    folder = os.path.join(home, ".cache", "paddle", "dataset")
    remedy = "set HOME to a folder in which this user may write"
    with writing(folder, remedy=remedy, what="made, and Paddle needs it"):
        os.makedirs(folder, exist_ok=True)


def set_variables() -> None:
    """Choose the BLAS code path, silence routine messages and open closed streams.

    Call it before Paddle is imported.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as in daemons: the next opened file would get its number
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115
    # MKL_CBWR chooses a code path, too, and MKL_DEBUG_CPU_TYPE would override it.
    if "MKL_CBWR" not in os.environ and _cpu_vendor() == "AuthenticAMD":
        os.environ.setdefault("MKL_DEBUG_CPU_TYPE", "5")
    for nuisance in _NUISANCES:
        warnings.filterwarnings("ignore", message=nuisance)
    # Read when Paddle is imported. Its information and warnings are for its developers.
    os.environ.setdefault("GLOG_minloglevel", "2")
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it would report where it keeps its fonts


def rank_from_env() -> int:
    """Return this process's rank from the launcher. It is 0 without a launcher."""
    return int(os.environ.get("PADDLE_TRAINER_ID", "0"))


def world_size_from_env() -> int:
    """Return how many ranks the launcher started. It is 1 without a launcher."""
    return int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))


def local_size_from_env() -> int:
    """Return how many ranks the launcher started on this machine. It is 1 without a launcher."""
    return int(os.environ.get("PADDLE_LOCAL_SIZE", "1"))


def by_paddles_launcher() -> bool:
    """Return whether Paddle's launcher has started this rank. No other program sets this variable."""
    return "PADDLE_RANK_IN_NODE" in os.environ


def refuse_ignored_nnodes() -> None:
    """Raise UserError if Paddle's launcher has ignored its option --nnodes.

    It does so if PADDLE_TRAINER_ENDPOINTS is in its environment, as in a shell inside a rank of another job.
    Each machine would then train alone.
    """
    if not by_paddles_launcher():
        return
    words = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode(errors="replace")
    asked = re.search(r"\0--nnodes[=\0](\d+)\0", words)
    nodes = os.environ.get("PADDLE_NNODES")
    if asked and nodes and int(asked[1]) != int(nodes):
        raise UserError(
            f"Paddle's launcher was started with --nnodes {asked[1]}, but uses --nnodes {nodes}; "
            "unset the variables PADDLE_* of another job, such as PADDLE_TRAINER_ENDPOINTS"
        )


def forget_other_master() -> None:
    """Remove MASTER_ADDR and MASTER_PORT if the launcher has set PADDLE_MASTER.

    Paddle would prefer them, and they are another program's, such as those of a cluster's job for PyTorch.
    """
    if os.environ.get("PADDLE_MASTER"):
        os.environ.pop("MASTER_ADDR", None)
        os.environ.pop("MASTER_PORT", None)


def master_from_env() -> tuple[str, int]:
    """Return host and port of the job's store, which rank 0 serves, as Paddle reads them after
    `forget_other_master`."""
    other = ":".join(filter(None, map(os.environ.get, ("MASTER_ADDR", "MASTER_PORT"))))
    first = os.environ.get("PADDLE_TRAINER_ENDPOINTS", "").partition(",")[0]
    address = os.environ.get("PADDLE_MASTER") or (other if ":" in other else first)
    host, _, port = address.rpartition(":")
    return host, int(port)


def available_bytes() -> int:
    """Return the bytes of memory that programs on this machine can still get (Linux)."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024


def prepare(threads: int | None = None, device: str = AUTO) -> int:
    """Set the environment. Call it before Paddle's first computation.

    Args:
        threads: threads for this rank. None means OMP_NUM_THREADS if the user has set it, otherwise this
            rank's share of the machine's processors.
        device: as Global.device.

    Returns the thread count for `distributed.init`.
    """
    before_paddle()
    if device == CPU:  # importing Paddle would look for the card that its launcher gave this rank
        for name in [name for name in os.environ if name.startswith("FLAGS_selected_")]:
            del os.environ[name]
    if threads is not None:
        return threads
    chosen = _environment_at_start().get("OMP_NUM_THREADS", "")
    if chosen.isdigit() and int(chosen) > 0:
        return int(chosen)
    return max(1, len(os.sched_getaffinity(0)) // local_size_from_env())


def for_ranks() -> dict[str, str]:
    """Return os.environ for a launch from this process, without the variables that Paddle and `prepare` have
    added."""
    ours = {"OMP_NUM_THREADS": "1", "MKL_DEBUG_CPU_TYPE": "5"}.items() - _environment_at_start().items()
    return dict(os.environ.items() - ours)


def _environment_at_start() -> dict[str, str]:
    """Return the environment that the user gave: the one in Paddle's launcher (the parent), or this process's
    own.

    os.environ would be wrong, because importing Paddle has put OMP_NUM_THREADS=1 into it, here and in that
    launcher.
    """
    pid = os.getppid() if by_paddles_launcher() else os.getpid()
    text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)


def _cpu_vendor() -> str:
    return _of_the_processor("vendor_id")


def processor() -> str:
    """Return the name of this machine's processor, as Linux knows it. "" if it does not."""
    return _of_the_processor("model name")


def _of_the_processor(key: str) -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith(key)), "")
