"""Recognize people in pictures over HTTP: `plsc serve people.gallery`, with a page at http://127.0.0.1:8000/.

POST /search        Send a form with `picture`. Optional: ?faces=all&top=5.
                    In the answer, `name` is the person in the largest face, or null. `text` is the answer in
                    words. `faces` lists the faces, largest first. Each has a `box`: left, top, width and
                    height in pixels. With faces=all, each face also has a name and a text, and faces that
                    are much smaller than the largest one are found, too.
GET /people         Returns {name: picture count}. Needs the token.
POST /people        Send a form with `name`, `pictures` and `groups` (true or false). Needs the token.
DELETE /people      ?name=Ann removes a person, ?name=Ann/3.jpg removes a picture. Needs the token.
GET /health         Returns the people count and the threshold.
GET /docs           Returns this page.

    curl -F picture=@who.jpg http://127.0.0.1:8000/search
    curl -H "X-Token: $PLSC_SERVE_TOKEN" -F name=Ann -F pictures=@1.jpg http://127.0.0.1:8000/people

The service reads the token from the environment variable PLSC_SERVE_TOKEN. A client sends it in the header
X-Token. Without a token the gallery cannot be changed. If `groups` is true, the largest face is also used in
photos whose second largest face is nearly as large. The answer to a failed request is {"detail": one line}.
/openapi.json describes the interface for programs. A request may have 100 MB.
"""

import argparse
import contextlib
import hmac
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from plsc.apps.gallery.answer import Face
from plsc.apps.gallery.command import add_network, network_of
from plsc.apps.gallery.gallery import Gallery
from plsc.errors import UserError, escape
from plsc.utils.logging import get_logger

try:
    import python_multipart  # noqa: F401 (FastAPI reads forms by it)
    import uvicorn
    from fastapi import Depends, FastAPI, File, Form, Header, HTTPException, Query, Request, UploadFile
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
except ImportError as error:
    raise UserError("plsc serve: pip install fastapi python-multipart uvicorn (the extra serve)") from error

TOKEN = "PLSC_SERVE_TOKEN"  # noqa: S105 (the name of a variable)
_MOST_AT_ONCE = 64  # most open requests (further ones are answered with status 503)
_LARGEST = 100_000_000  # most bytes in a request's body
_SHORTEST_TOKEN = 16  # characters
_FORMS = {
    "/search": "one file as curl -F picture=@who.jpg",
    "/people": "a name and files as curl -F name=Ann -F pictures=@ann.jpg",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `plsc serve`. Raises UserError."""
    parser = argparse.ArgumentParser(
        "plsc serve", description="Answer over HTTP whom a picture shows, with a web page."
    )
    parser.add_argument("gallery", help="what plsc gallery build wrote")
    parser.add_argument("--host", default="127.0.0.1", help="address; 0.0.0.0 means all of this machine's")
    parser.add_argument("--port", type=int, default=8000, help="default: %(default)s")
    add_network(parser, "the gallery's")
    args = parser.parse_args(argv)
    if not 0 <= args.port < 2**16:
        parser.error(f"--port must be 0 to 65535 (got {args.port})")
    token = os.environ.get(TOKEN, "")
    if token and len(token) < _SHORTEST_TOKEN:
        raise UserError(f"{TOKEN}: has {len(token)} characters, a token has at least {_SHORTEST_TOKEN}")
    gallery = Gallery.open(args.gallery, network_of(args))
    get_logger().info(
        f"{escape(args.gallery)}: {len(gallery):,} people, by {gallery.network.title}; "
        f"http://{args.host}:{args.port}/{'' if token else f', read only without {TOKEN}'}"
    )
    app = create_app(gallery, token)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # else SIGTERM would skip closing the gallery
    with contextlib.closing(gallery):
        uvicorn.run(app, host=args.host, port=args.port, limit_concurrency=_MOST_AT_ONCE, log_level="warning")
    return 0


def create_app(gallery: Gallery, token: str = "") -> FastAPI:
    """Make the application.

    Args:
        gallery: the gallery that answers.
        token: the token that requests need to change the gallery. If empty, no request can change it.
    """
    app = FastAPI(title="plsc", docs_url=None, redoc_url=None)  # their pages load scripts from the internet
    app.add_middleware(_Limit)
    # Limits how many pictures are decoded at the same time. Each may take 200 MB.
    working = threading.BoundedSemaphore(os.cpu_count() or 1)

    def check_token(x_token: Annotated[str, Header()] = "") -> None:
        if not token:
            raise HTTPException(
                403, f"this service is read-only; to allow changes, start it with a token in {TOKEN}"
            )
        if not hmac.compare_digest(x_token.encode("latin-1"), token.encode()):
            raise HTTPException(401, "the header X-Token is missing or wrong")

    with_token = [Depends(check_token)]

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(Path(__file__).with_name("page.html"))

    @app.get("/docs", include_in_schema=False)
    def docs() -> PlainTextResponse:
        return PlainTextResponse(__doc__)

    @app.get("/health")
    def health() -> dict[str, Any]:
        return {"people": len(gallery), "threshold": gallery.threshold.cosine}

    @app.post("/search")
    def search(
        picture: Annotated[list[UploadFile], File(max_length=1)],
        top: Annotated[int, Query(ge=1, le=100)] = 5,
        faces: Literal["largest", "all"] = "largest",
    ) -> dict[str, Any]:
        (given,) = picture  # a list, because FastAPI would silently use the last of several pictures
        with working:
            (answer,) = gallery.search([_Uploaded(given)], top, faces)
        if not answer.matches and len(gallery):
            raise HTTPException(422, f"{escape(given.filename)}: {answer.reason}")
        looked_up = answer.faces if faces == "all" else answer.faces[:1]
        rest = [{"box": face.box} for face in answer.faces[len(looked_up) :]]
        return {**_describe(answer), "faces": [*map(_describe, looked_up), *rest]}

    @app.get("/people", dependencies=with_token)
    def people() -> dict[str, int]:
        return gallery.people

    @app.post("/people", dependencies=with_token)
    def add(
        name: Annotated[str, Form()],
        pictures: Annotated[list[UploadFile], File()],
        groups: Annotated[bool, Form()] = False,
    ) -> dict[str, Any]:
        with working:
            left_out = gallery.add(name, [_Uploaded(each) for each in pictures], groups)
        return {"added": len(pictures) - len(left_out), "left_out": left_out, "people": len(gallery)}

    @app.delete("/people", dependencies=with_token)
    def remove(name: str) -> dict[str, Any]:
        gallery.remove(name)
        return {"people": len(gallery)}

    @app.exception_handler(UserError)
    def refuse(_: Request, error: UserError) -> JSONResponse:
        if error.__cause__ is None:
            return JSONResponse({"detail": str(error)}, 422)
        get_logger().error(str(error))  # the gallery's file or the disk is the cause
        return JSONResponse({"detail": "the gallery cannot be used now; the service's log says why"}, 503)

    @app.exception_handler(RequestValidationError)
    def explain(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where, name, *_ = first["loc"]
        path = request.scope["route"].path
        how = f"is missing or has another form; send {_FORMS[path]} http://...{path}"
        what = how if where == "body" else first["msg"]
        return JSONResponse({"detail": f"{name}: {what}"}, 422)

    return app


class _Limit:
    """Middleware that answers a request with status 413 as soon as its body is larger than _LARGEST."""

    def __init__(self, app: Any):
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        left = _LARGEST

        async def counted() -> Any:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(
                    413, f"a request may have {_LARGEST:,} bytes; send fewer or smaller files"
                )
            return message

        await self._app(scope, counted, send)


class _Uploaded(bytes):
    """A picture's bytes, with its name for messages."""

    def __new__(cls, file: UploadFile):
        made = super().__new__(cls, file.file.read())
        made.name = file.filename
        return made


def _describe(face: Face) -> dict[str, Any]:
    """Return a face, or an answer's largest face, in the form of the JSON answers."""
    return {
        "name": face.name,
        "text": str(face),
        "reason": face.reason,
        "threshold": face.threshold,
        "box": face.box,
        "matches": [match._asdict() for match in face.matches],
    }
