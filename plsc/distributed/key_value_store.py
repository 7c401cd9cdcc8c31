"""Reach the job's key-value store, which rank 0 keeps, without a delay in every question."""

import contextlib
import functools
import os
import socket
import stat

import paddle


@functools.cache
def get_store():
    """Return Paddle's TCPStore of this job. Rank 0 starts it, and the others' first calls wait for that."""
    store = paddle.base.core.create_or_get_global_tcp_store()
    port = os.environ.get("MASTER_PORT") or os.environ.get("PADDLE_MASTER", "").rpartition(":")[2]
    if port.isdigit():
        _send_at_once(int(port))
    return store


def _send_at_once(port: int) -> None:
    """Turn Nagle's algorithm off in this process's connections to `port`.

    Paddle's client sends a question in three pieces. The second is held back until the first is acknowledged,
    which the other side puts off by 40 ms, so that a question takes 44 ms and not 0.06. Where /dev/fd is
    missing, it stays so.
    """
    try:
        numbers = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        return
    for number in numbers:
        with contextlib.suppress(OSError):  # closed by now, or not connected
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                with socket.socket(fileno=os.dup(number)) as connection:
                    there = connection.getpeername()[1:2]  # of a socket of Unix part of a path
                    if connection.type == socket.SOCK_STREAM and there == (port,):
                        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
