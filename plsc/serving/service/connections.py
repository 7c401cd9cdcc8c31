"""Close connections that bring no request: uvicorn waits for a header for ever, and takes so many connections only.

A body has its deadline in guard.py, and a connection between two requests uvicorn's own.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol


def protocol(deadline: float) -> type[asyncio.Protocol]:
    """Make uvicorn's protocol of HTTP with a deadline in seconds, or up to twice that, for the header of each request."""

    class Protocol(AutoHTTPProtocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch(None)

        def _watch(self, before: Any) -> None:
            """Look after the deadline whether a request has come since that of `before`."""
            self._timer = self.loop.call_later(deadline, self._close_or_watch, before)

        def _close_or_watch(self, before: Any) -> None:
            if self.cycle is before and (before is None or before.response_complete):
                self.transport.close()
            else:
                self._watch(self.cycle)

        def connection_lost(self, error: Exception | None) -> None:
            self._timer.cancel()
            super().connection_lost(error)

    return Protocol
