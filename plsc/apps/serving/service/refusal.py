"""Define how the service says no: a status of HTTP and one line of text."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi.responses import JSONResponse

from plsc.apps.serving.service.answers import Problem, Remark
from plsc.errors import shown


class Refusal(Exception):
    """A request that is answered by an error of HTTP.

    status: 4xx, or 503 where the same request may succeed later. text: what is wrong, for the client's user.
    pictures: all that are refused, where it is pictures.
    """

    def __init__(self, status: int, text: str, pictures: Sequence[Remark] = ()):
        super().__init__(text)
        self.status = status
        self.pictures = pictures


class PictureRefusal(Exception):
    """A picture that cannot be used. status: of HTTP. rule, text: see `Remark`."""

    def __init__(self, status: int, rule: str, text: str):
        super().__init__(text)
        self.status = status
        self.rule = rule


def refused(status: int, text: object, pictures: Sequence[Remark] = ()) -> JSONResponse:
    """Make the answer {"error": text}, on one line."""
    problem = Problem(error=shown(text), refused=[*pictures] or None)
    headers = {503: {"Retry-After": "1"}, 401: {"WWW-Authenticate": "Bearer"}}.get(status)
    return JSONResponse(problem.model_dump(exclude_none=True), status, headers)
