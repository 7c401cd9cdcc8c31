"""Close connections that bring no request, or do not take the answer: uvicorn waits for both for ever.

A body has its deadline in guard.py, and a connection between two requests uvicorn's own.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

_LEAST = 1 << 14  # bytes of an answer that a client takes within the deadline
_ACKED = 120  # where Linux (4.1 and later) has tcpi_bytes_acked in its struct tcp_info


def protocol(deadline: float, most: int) -> type[asyncio.Protocol]:
    """Make uvicorn's protocol of HTTP for `most` connections at once; a further one is closed.

    deadline: seconds, or up to twice that, for the header of each request, and for taking 16 KB of what is
    answered.
    """

    class Protocol(AutoHTTPProtocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.abort()
            self._watch()

        def _watch(self) -> None:
            """Look after the deadline what has happened since now."""
            self._before = self.cycle, *_flow(self.transport)
            self._timer = self.loop.call_later(deadline, self._close_or_watch)

        def _close_or_watch(self) -> None:
            cycle, waited, taken_before = self._before
            waits, taken = _flow(self.transport)
            same = self.cycle is cycle
            if waits and waited and taken - taken_before < (_LEAST if same else 1):
                self.transport.abort()  # close() would wait until all is sent
            elif same and not waits and (cycle is None or cycle.response_complete):
                self.transport.close()
            else:
                self._watch()

        def connection_lost(self, error: Exception | None) -> None:
            self._timer.cancel()
            super().connection_lost(error)

    return Protocol


def _flow(transport: Any) -> tuple[bool, int]:
    """Return whether some of the answers, held by us or by the kernel, is still to be taken, and how many
    bytes the client has taken."""
    sock = transport.get_extra_info("socket")
    in_kernel = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    (taken,) = struct.unpack_from("Q", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128), _ACKED)
    return transport.get_write_buffer_size() > 0 or any(in_kernel), taken
