"""Stand between the network and the service: bound what comes in, and say in headers what a browser may do
with what goes out.

- A web page of another site must not use the service through its visitor's browser: requests that a browser
  marks as another site's are refused, no CORS header is ever sent, and on loopback only names of this machine are answered (an attacker's name that
  resolves to 127.0.0.1, "DNS rebinding", is not one).
- A body is counted as it arrives, and has to arrive before a deadline.
- So many requests with a body at once, then 503.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plsc.apps.serving.service.metrics import Metrics
from plsc.apps.serving.service.options import Options
from plsc.apps.serving.service.refusal import Refusal, refused
from plsc.errors import shown

_SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Guard:
    """An ASGI middleware around the whole service; `open_paths` are answered to everybody."""

    def __init__(self, app: ASGIApp, options: Options, metrics: Metrics, open_paths: frozenset[str]):
        self._app = app
        self._open = open_paths
        self._options = options
        self._metrics = metrics
        self._bodies = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        headers = Headers(scope=scope)
        exchange = _Exchange(receive, send, headers, self._options)
        bodies = 0
        try:
            self._check(scope, headers)
            bodies = int(scope["method"] == "POST")
            self._bodies += bodies
            await self._app(scope, exchange.receive, exchange.send)
        except Refusal as refusal:  # of _check; the service's own are answered inside
            await refused(refusal.status, refusal)(scope, exchange.receive, exchange.send)
        finally:
            self._bodies -= bodies
            path = getattr(scope.get("route"), "path", "other")
            self._metrics.count_request(path, exchange.status, time.perf_counter() - began)

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Raise Refusal for a request that must not reach the service."""
        options = self._options
        host = headers.get("host", "")
        if options.hosts is not None and _name_of(host) not in options.hosts:
            names = ", ".join(sorted(options.hosts))
            raise Refusal(421, f"Host '{shown(host)}': this service answers to {names} only")
        if scope["method"] not in ("GET", "HEAD") and _of_another_site(headers, host):
            raise Refusal(403, "the request comes from a web page of another site")
        # A wrong token is refused where none is needed, too: who gives one wants to know.
        brings = options.token is not None and headers.get("authorization", "").lower().startswith("bearer")
        if (options.private or brings) and scope["path"] not in self._open:
            check_token(headers, options.token)
        if scope["method"] == "POST" and self._bodies >= options.queue:
            raise Refusal(503, f"{options.queue} requests are in progress; try again later")
        length = int(headers.get("content-length") or 0)  # the server has checked that it is a number
        if length > options.max_bytes:
            raise _too_large(options)


class _Exchange:
    """One request and its answer: bounds the body, adds headers to the answer, remembers its status."""

    def __init__(self, receive: Receive, send: Send, headers: Headers, options: Options):
        self._receive = receive
        self._send = send
        self._options = options
        self._left = options.max_bytes
        self._until = time.monotonic() + options.deadline
        # A client that asks first ("Expect: 100-continue") has sent nothing that would have to be read.
        self._arrived = "expect" in headers
        self.status = 500

    async def receive(self) -> Message:
        self._arrived = False
        message = await self._next()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise _too_large(self._options)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message).update(_SECURITY)
            await self._discard()
        await self._send(message)

    async def _next(self) -> Message:
        try:
            message = await asyncio.wait_for(self._receive(), self._until - time.monotonic())
        except asyncio.TimeoutError:
            self._arrived = True
            raise Refusal(408, f"the body has not arrived within {self._options.deadline:g} s") from None
        self._arrived = not message.get("more_body", False)
        return message

    async def _discard(self) -> None:
        """Read what is left of a body whose request is answered: a client that is still sending would miss
        the answer."""
        try:
            while not self._arrived:
                await self._next()
        except Refusal:
            return


def check_token(headers: Headers, token: str | None) -> None:
    """Raise Refusal 401 unless the request brings the token, which is compared in constant time."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    right = hmac.compare_digest(given.strip().encode(), (token or "").encode())
    if token is None or scheme.lower() != "bearer" or not right:
        raise Refusal(401, "needs the header 'Authorization: Bearer TOKEN' with the token of this service")


def _too_large(options: Options) -> Refusal:
    return Refusal(413, f"a request has at most {options.max_bytes:,} bytes; send smaller or fewer pictures")


def _name_of(host: str) -> str:
    """Return the name in a Host header, without port and brackets, in lower case; "" where it is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _of_another_site(headers: Headers, host: str) -> bool:
    """Say whether a browser marks the request as made by a page of another origin. Other clients send neither
    header."""
    # Browsers send it to loopback and over TLS, also behind a proxy that changes Host.
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] != host
