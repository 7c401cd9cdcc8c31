"""Exchange reports and orders between the machines of a run: the first machine serves, the others post to it.

JSON over HTTP, a connection of its own for each report: after a break of the network the next one gets through.
What comes in is checked field by field; it is data, nothing of it is run.
"""

# ruff: noqa: UP045 - pydantic evaluates the annotations, and Python 3.9 has no X | None
from __future__ import annotations

import contextlib
import http.client
import math
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated, Any, Literal, Optional

from pydantic import AfterValidator, BaseModel, ConfigDict, NonNegativeInt, ValidationError

from plsc.errors import UserError, shown

EVERY = 0.5  # seconds between two reports
HUNG = 30.0  # seconds after which a machine that does nothing, though its process lives, counts as silent
_TIMEOUT = 3.0  # seconds for an answer
_MOST_BYTES = 1 << 24  # of a report
# What `Client.send` raises; ValueError where what answers is no plsc run.
NO_ANSWER = (OSError, http.client.HTTPException, ValueError)


def _as_sent(value: Any) -> Any:
    """Return data as they arrive: text that UTF-8 cannot hold, as of file names, escaped, and infinity as text."""
    if isinstance(value, dict):
        return {shown(key): _as_sent(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_as_sent(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return shown(value) if isinstance(value, str) else value


_Text = Annotated[str, AfterValidator(shown)]
_Data = Annotated[dict[str, Any], AfterValidator(_as_sent)]
Signal = Literal["SIGTERM", "SIGINT", "SIGHUP"]


class _Message(BaseModel):
    model_config = ConfigDict(
        strict=True, extra="ignore"
    )  # another version may say more: versions are compared


class Cause(_Message):
    """Why a start has ended on a machine."""

    text: _Text
    user: bool = False
    """A mistake of the user."""
    consequence: bool = False
    """Most likely of another rank's end, since it is about a lost connection."""
    rank: Optional[int] = None
    """None if unknown."""
    age: float = 0.0
    """Seconds between the failure and the report."""


class Stuck(_Message):
    """A rank that was still there when its machine was ordered to stop."""

    rank: NonNegativeInt
    text: _Text
    begun: Optional[NonNegativeInt] = None
    """Collectives that it has begun; None if unknown."""
    halted: bool = False
    """It was stopped by SIGSTOP."""


class Outcome(_Message):
    """How a start has ended on a machine."""

    code: int
    """Exit code of the launcher; that of an ordered stop means nothing."""
    stopped: Optional[Signal] = None
    """The signal on which the ranks have saved and stopped."""
    cause: Optional[Cause] = None
    stuck: list[Stuck] = []
    full: bool = False
    """The disk is full."""


class Details(_Message):
    """What changes with the state only."""

    facts: _Data = {}
    survey: _Data = {}
    """The checkpoints on this machine's disk, see plsc.checkpoint.pieces."""
    outcome: Optional[Outcome] = None


class Report(_Message):
    """What a machine does now."""

    machine: NonNegativeInt
    id: str
    """Of the process of plsc run: another one for each call."""
    number: NonNegativeInt
    """Counts the reports of a process."""
    host: _Text
    address: str
    state: Literal["ready", "running", "ended", "refused", "over"]
    """ready: could start. ended: the start of `generation` has. refused: there is a mistake, `outcome` has it.
    over: plsc run ends."""
    generation: NonNegativeInt
    """Of the start that it has made last."""
    began: bool = False
    """A rank of that start has begun."""
    signal: Optional[Signal] = None
    """By which it was asked to stop."""
    agreement: str = ""
    """That of the last order."""
    seen: NonNegativeInt = 0
    """Lines of that agreement that it has printed."""
    time: float = 0.0
    """Its clock."""
    changes: NonNegativeInt = 0
    """Counts the changes of `details`."""
    details: Optional[Details] = None
    """Sent until an order says that they are known."""


class StartOrder(_Message):
    """How to start the ranks."""

    machines: list[int]
    """Those that take part, in the order of their ranks."""
    master: str
    """Address and port for Paddle's launchers to meet."""
    overrides: list[str]
    """Of the config."""


class Order(_Message):
    """What a machine has to do now."""

    agreement: str
    """Id of the first machine's process."""
    action: Literal["wait", "prepare", "start", "stop", "end"]
    """wait: go on as you are. prepare: get ready for a start. stop: end the ranks at once. end: end plsc run."""
    generation: NonNegativeInt = 0
    seen: NonNegativeInt = 0
    """Lines before these `lines`."""
    lines: list[_Text] = []
    """To print."""
    start: Optional[StartOrder] = None
    code: int = 0
    """Exit code of plsc run."""
    known: NonNegativeInt = 0
    """The changes of the details that are known."""


class Server:
    """Serves reports on `port` of all interfaces until it is closed. `answer`: called by several threads.

    Raises UserError if it cannot listen there.
    """

    def __init__(self, port: int, answer: Callable[[Report], Order]):
        class Handler(BaseHTTPRequestHandler):
            timeout = _TIMEOUT

            def do_POST(self) -> None:
                length = self.headers.get("Content-Length", "")
                if not length.isdecimal() or int(length) > _MOST_BYTES:
                    self.send_error(400)
                    return
                try:
                    report = Report.model_validate_json(self.rfile.read(int(length)))
                except ValidationError:
                    self.send_error(400)
                    return
                content = answer(report).model_dump_json().encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        class Listener(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: Any, client_address: Any) -> None:
                if not isinstance(sys.exc_info()[1], OSError):  # else whoever asked has gone; it asks again
                    super().handle_error(request, client_address)

        try:
            self._server = Listener(("", port), Handler)
        except OSError as error:
            raise UserError(
                f"--master: cannot listen on port {port} of this machine, number 0 ({error.strerror}); is another run at work? "
                "name another port, the same on all machines"
            ) from error
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Client:
    """Posts this machine's report to the first machine twice a second, in a thread, while `post` is called.

    Attributes: `order`, the last one; `contact`, when it came (time.monotonic), at first when this was made.
    """

    def __init__(self, host: str, port: int):
        self.order: Order | None = None
        self.contact = time.monotonic()
        self._where = host, port
        self._report: Report | None = None
        self._posted = 0.0
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._number = 0
        self._closed = False
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        """Report no more."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def post(self, report: Report, at_once: bool) -> None:
        """Set what is reported from now on."""
        with self._changed:
            self._report = report
            self._posted = time.monotonic()
            if at_once:
                self._changed.notify()

    def send(self, report: Report) -> None:
        """Report once, and again from now on. Raises one of NO_ANSWER."""
        self.post(report, at_once=False)
        with self._sending:
            self._send()

    def _send(self) -> None:
        self._number += 1
        numbered = self._report.model_copy(update={"number": self._number, "time": time.time()})
        connection = http.client.HTTPConnection(*self._where, timeout=_TIMEOUT)
        with contextlib.closing(connection):
            connection.request("POST", "/", numbered.model_dump_json(), {"Content-Type": "application/json"})
            order = Order.model_validate_json(connection.getresponse().read(_MOST_BYTES))
        self.order = order
        self.contact = time.monotonic()

    def _run(self) -> None:
        while not self._closed:
            with self._changed:
                self._changed.wait(EVERY)
            if self._closed or self._report is None or time.monotonic() > self._posted + HUNG:
                continue  # the main thread hangs, perhaps with its disk
            with contextlib.suppress(*NO_ANSWER), self._sending:
                self._send()
