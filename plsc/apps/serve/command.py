"""Answer over HTTP whom a picture shows: `plsc serve people.gallery`, with a page at http://127.0.0.1:8000/.

POST /search        a form with `picture`: the nearest people, best first; `name` is the answer, or null
GET /people         the names                              with the token
POST /people        a form with `name` and `pictures`      with the token
DELETE /people      ?name=Ann                              with the token
GET /health

The token is in the environment variable PLSC_SERVE_TOKEN, and comes in the header X-Token; without it nobody
changes the gallery. An error is {"detail": one line}. /docs shows all of it.
"""

import argparse
import contextlib
import hmac
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from plsc.apps.gallery.command import add_network, network_of
from plsc.apps.gallery.gallery import Gallery
from plsc.errors import UserError, shown
from plsc.utils.logging import get_logger

try:
    import python_multipart  # noqa: F401 (FastAPI reads forms by it)
    import uvicorn
    from fastapi import Depends, FastAPI, File, Form, Header, HTTPException, Request, UploadFile
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import FileResponse, JSONResponse
except ImportError as error:
    raise UserError("plsc serve: pip install fastapi python-multipart uvicorn (the extra serve)") from error

TOKEN = "PLSC_SERVE_TOKEN"  # noqa: S105 (the name of a variable)
_MOST_AT_ONCE = 64  # requests; more are answered 503
_SHORTEST_TOKEN = 16
_FORMS = {
    "/search": "one file as curl -F picture=@who.jpg",
    "/people": "a name and files as curl -F name=Ann -F pictures=@ann.jpg",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `plsc serve`. Raises UserError."""
    parser = argparse.ArgumentParser(
        "plsc serve", description="Answer over HTTP whom a picture shows, with a page for people."
    )
    parser.add_argument("gallery", help="what plsc gallery build wrote")
    parser.add_argument("--host", default="127.0.0.1", help="address; 0.0.0.0: all of this machine's")
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
        f"{shown(args.gallery)}: {len(gallery):,} people, by {gallery.network.title}; "
        f"http://{args.host}:{args.port}/{'' if token else f', read only without {TOKEN}'}"
    )
    app = create_app(gallery, token)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # else uvicorn ends with that before closing
    with contextlib.closing(gallery):
        uvicorn.run(app, host=args.host, port=args.port, limit_concurrency=_MOST_AT_ONCE, log_level="warning")
    return 0


def create_app(gallery: Gallery, token: str = "") -> FastAPI:
    """Make the application. token: changes the gallery, "": nothing does."""
    app = FastAPI(title="plsc")
    # Of pictures that are decoded at the same time; each may take 200 MB.
    working = threading.BoundedSemaphore(os.cpu_count() or 1)

    def check_token(x_token: Annotated[str, Header()] = "") -> None:
        if not token:
            raise HTTPException(403, f"this service changes nothing; start it with a token in {TOKEN}")
        if not hmac.compare_digest(x_token.encode("latin-1"), token.encode()):
            raise HTTPException(401, "the header X-Token is missing or wrong")

    with_token = [Depends(check_token)]

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(Path(__file__).with_name("page.html"))

    @app.get("/health")
    def health() -> dict[str, Any]:
        return {"people": len(gallery), "threshold": gallery.threshold.cosine}

    @app.post("/search")
    def search(picture: Annotated[list[UploadFile], File(max_length=1)], top: int = 5) -> dict[str, Any]:
        with working:  # a list: of several under one name FastAPI would take the last
            (answer,) = gallery.search([picture[0].file.read()], max(1, min(top, 100)))
        if not answer.matches and len(gallery):
            raise HTTPException(422, f"the picture: {answer.reason}")
        return {
            "name": answer.name,
            "text": str(answer),
            "reason": answer.reason,
            "threshold": answer.threshold,
            "faces": len(answer.faces),
            "matches": [match._asdict() for match in answer.matches],
        }

    @app.get("/people", dependencies=with_token)
    def people() -> list[str]:
        return [*gallery]

    @app.post("/people", dependencies=with_token)
    def add(name: Annotated[str, Form()], pictures: Annotated[list[UploadFile], File()]) -> dict[str, Any]:
        with working:
            left_out = gallery.add(name, [each.file.read() for each in pictures])
        return {"added": len(pictures) - len(left_out), "left_out": left_out, "people": len(gallery)}

    @app.delete("/people", dependencies=with_token)
    def remove(name: str) -> dict[str, Any]:
        gallery.remove(name)
        return {"people": len(gallery)}

    @app.exception_handler(UserError)
    def refuse(_: Request, error: UserError) -> JSONResponse:
        if error.__cause__ is None:
            return JSONResponse({"detail": str(error)}, 422)
        get_logger().error(str(error))  # of the gallery's file, or of the disk
        return JSONResponse({"detail": "the gallery cannot be used now; the service's log says why"}, 503)

    @app.exception_handler(RequestValidationError)
    def explain(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where, name, *_ = first["loc"]
        path = request.scope["route"].path
        how = f"is missing, or not what the form has; send {_FORMS[path]} http://...{path}"
        what = how if where == "body" else first["msg"]
        return JSONResponse({"detail": f"{name}: {what}"}, 422)

    return app
