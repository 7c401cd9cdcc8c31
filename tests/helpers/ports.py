"""Ports that a test takes now and opens later: not where the system gives ports to connections, one of which
may come first."""

import random
import socket

RANGE = "10000:32000"


def free_port() -> int:
    """Return a port that nobody has now."""
    first, last = map(int, RANGE.split(":"))
    for port in random.sample(range(first, last), 100):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as any_socket:
            try:
                any_socket.bind(("", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no free port in {RANGE}")
