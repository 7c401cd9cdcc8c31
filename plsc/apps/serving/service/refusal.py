"""Define how the service says no: a status of HTTP and one line of text."""

from __future__ import annotations

from fastapi.responses import JSONResponse

from plsc.errors import shown


class Refusal(Exception):
    """A request that is answered by an error of HTTP.

    status: 4xx, or 503 where the same request may succeed later. text: what is wrong, for the client's user.
    """

    def __init__(self, status: int, text: str):
        super().__init__(text)
        self.status = status


def refused(status: int, text: object) -> JSONResponse:
    """Make the answer {"error": text}, on one line."""
    headers = {503: {"Retry-After": "1"}, 401: {"WWW-Authenticate": "Bearer"}}.get(status)
    return JSONResponse({"error": shown(text)}, status, headers)
