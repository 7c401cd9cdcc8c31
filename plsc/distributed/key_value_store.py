"""Connect to the job's key-value store, which rank 0 serves, without a delay in every question."""

import contextlib
import functools
import os
import socket
import stat
import time

from plsc.distributed import paddle_internals
from plsc.distributed.environment import master_from_env, rank_from_env


@functools.cache
def get_store():
    """Return this job's TCPStore from Paddle. Rank 0 starts it, and any other rank's first call waits
    until it has."""
    host, port = master_from_env()
    if rank_from_env() != 0:
        _wait_for_server(host, port)
    store = paddle_internals.job_store()
    _send_at_once(port)
    return store


def _wait_for_server(host: str, port: int) -> None:
    """Wait until rank 0 listens, for at most a minute. Paddle's client would only try again after 3 s."""
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=5) as connection:
            if connection.getsockname() != connection.getpeername():  # else it has connected to itself
                return
        time.sleep(0.005)


def _send_at_once(port: int) -> None:
    """Turn Nagle's algorithm off in this process's connections to `port`.

    Paddle's client sends a question in three pieces. The kernel holds the second back until the first is
    acknowledged, and the other side delays that by 40 ms. A question then takes 44 ms instead of 0.06. If
    /dev/fd is missing, the delay remains.
    """
    try:
        numbers = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        return
    for number in numbers:
        with contextlib.suppress(OSError):  # it was closed meanwhile, or is not connected
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                with socket.socket(fileno=os.dup(number)) as connection:
                    peer_port = connection.getpeername()[1:2]  # of a Unix socket a part of its path
                    if connection.type == socket.SOCK_STREAM and peer_port == (port,):
                        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
