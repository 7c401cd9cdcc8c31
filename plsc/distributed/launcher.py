"""Start `python -m plsc ...` on several ranks on this machine, and wait until they have ended.

    launch(["selftest"], 2, Path("log"), print)    # {1: 0, 0: 0}: both have ended with exit code 0

The ranks meet on the loopback interface, so the machine's name needs no address, and no proxy is asked. The
ranks die with this process. On several machines Paddle's launcher starts them.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from plsc.distributed import environment

MAIN = Path(__file__).resolve().parents[1] / "__main__.py"
GRACE = 3.0  # seconds in which the other ranks have to end after one has failed
_POLL = 0.1  # seconds
_PR_SET_PDEATHSIG = 1
# Looked up before any fork. Looking up takes a lock, which another thread may hold when the process forks.
_prctl = ctypes.CDLL(None).prctl


def launch(
    arguments: Sequence[str],
    ranks: int,
    logs: Path,
    print_lines: Callable[[str], object],
    main: Path = MAIN,
    env: Mapping[str, str] = {},
    watch: Callable[[Collection[subprocess.Popen]], object] = lambda running: None,
) -> dict[int, int | None]:
    """Run `python main *arguments` on `ranks` processes with the import path of this one.

    Args:
        arguments: each process's command-line arguments.
        ranks: how many processes.
        logs: folder for each rank's output: workerlog.0, workerlog.1, ...
        print_lines: called with the text that rank 0 prints.
        main: plsc's or the benchmarks' __main__.py.
        env: variables to add to the environment.
        watch: called several times a second with the running processes.

    Returns each rank's exit code, in the order in which they ended. A negative code is the signal that
    killed it. None means that the rank did not end after another one had failed, and was killed.
    """
    logs.mkdir(parents=True, exist_ok=True)
    ends: dict[int, int | None] = {}
    running: dict[int, subprocess.Popen] = {}
    patience = float("inf")
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(_port_of_our_own())
        for rank in range(ranks):
            log = stack.enter_context(open(logs / f"workerlog.{rank}", "ab"))
            running[rank] = subprocess.Popen(
                [sys.executable, "-u", str(main), *arguments],
                env={**_environment(rank, ranks, port), **env},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # this process passes Ctrl-C on
                preexec_fn=die_with_parent,  # noqa: PLW1509 (it takes no lock)
            )
            if rank == 0:
                printed = stack.enter_context(open(log.name, encoding="utf-8", errors="backslashreplace"))
                printed.seek(log.tell())
        while running:
            time.sleep(_POLL)
            watch(running.values())
            for rank, process in list(running.items()):
                if process.poll() is not None:
                    ends[rank] = process.returncode
                    del running[rank]
            if text := printed.read():
                print_lines(text)
            if any(ends.values()):
                patience = min(patience, time.monotonic() + GRACE)
            if time.monotonic() > patience:
                for rank, process in running.items():
                    process.kill()
                    process.wait()
                    ends[rank] = None
                running.clear()
    return ends


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Return the variables that Paddle reads in a rank, and those by which Python finds plsc."""
    # Only rank 0 listens at its endpoint.
    endpoints = [f"127.0.0.1:{port + number}" for number in range(ranks)]
    cards = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(ranks)))).split(",")
    card = cards[rank] if rank < len(cards) else "-1"  # which does not exist
    return {
        **environment.for_ranks(),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        **({"CUDA_VISIBLE_DEVICES": card} if ranks > 1 else {}),
        "PADDLE_MASTER": endpoints[0],
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINERS_NUM": str(ranks),
        "PADDLE_LOCAL_SIZE": str(ranks),
    }


@contextlib.contextmanager
def _port_of_our_own() -> Iterator[int]:
    """Reserve a port inside the block. Only rank 0's store can listen there."""
    with socket.socket() as kept, socket.socket(type=socket.SOCK_DGRAM) as probe:
        # Sends nothing. Raises OSError if there is no loopback interface, where the ranks would wait for
        # ever.
        probe.connect(("127.0.0.1", 1))
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the store does
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends for any reason.

    Otherwise a killed launcher's ranks would keep running, since each has its own session.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
