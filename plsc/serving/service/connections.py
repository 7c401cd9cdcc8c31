"""Close connections that bring no request, or do not take the answer: uvicorn waits for both for ever.

A body has its deadline in guard.py, and a connection between two requests uvicorn's own.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

_LEAST = 1 << 14  # bytes of an answer that a client takes within the deadline


def protocol(deadline: float, most: int) -> type[asyncio.Protocol]:
    """Make uvicorn's protocol of HTTP for `most` connections at once; a further one is closed.

    deadline: seconds, or up to twice that, for the header of each request, and for taking 16 KB of what is answered.
    """

    class Protocol(AutoHTTPProtocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.abort()
            self._watch()

        def _watch(self) -> None:
            """Look after the deadline what has happened since now."""
            before = self.cycle, _unsent(self.transport)
            self._timer = self.loop.call_later(deadline, self._close_or_watch, *before)

        def _close_or_watch(self, cycle: Any, unsent: int) -> None:
            if self.cycle is not cycle:
                self._watch()
            elif unsent and _unsent(self.transport) > unsent - _LEAST:
                self.transport.abort()  # close() would wait until all is sent
            elif not unsent and (cycle is None or cycle.response_complete):
                self.transport.close()
            else:
                self._watch()

        def connection_lost(self, error: Exception | None) -> None:
            self._timer.cancel()
            super().connection_lost(error)

    return Protocol


def _unsent(transport: Any) -> int:
    """Count the bytes of answers that the client has not taken yet: those that we hold, and those that the kernel holds."""
    in_kernel = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    return transport.get_write_buffer_size() + int.from_bytes(in_kernel, sys.byteorder)
