"""Exchange reports and orders between the machines of a run: the first machine serves, the others post to it.

JSON over HTTP, a connection of its own for each report: after a break of the network the next one gets
through. What comes in is bounded and checked field by field; it is data, nothing of it is run. With a secret
(secret.py) it is signed:

- a report by HMAC of method, path and body. It names the agreement of the last order, which is another one
  for each process of the first machine, and its number, which grows: the same report again is not heard, in this run or another.
- an order by HMAC of the report's signature and its own body: it answers that report only.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from pydantic import BaseModel, FiniteFloat, NonNegativeInt, ValidationError

from plsc.apps.supervise import secret
from plsc.apps.supervise.facts import MESSAGE, Facts, Name, Text
from plsc.apps.supervise.secret import Secret
from plsc.errors import UserError, shown
from plsc.utils.messages import first_problem

EVERY = 0.5  # seconds between two reports
HUNG = 30.0  # seconds after which a machine that does nothing, though its process lives, counts as silent
_TIMEOUT = 3.0  # seconds for a report and its answer
_MOST_BYTES = 1 << 20  # of a report, and of an order
_MOST_VALUES = 100_000  # of a report
_MOST_CONNECTIONS = 256  # at once
_MOST_OF_ONE = 64  # of one address
_MOST_WARNINGS = 16  # about reports that were refused, one for each address
# What `Client.send` raises; ValueError where what answers is no plsc run.
NO_ANSWER = (OSError, http.client.HTTPException, ValueError)


Signal = Literal["SIGTERM", "SIGINT", "SIGHUP"]


class _Message(BaseModel):
    model_config = MESSAGE


class Cause(_Message):
    """Why a start has ended on a machine."""

    text: Text
    user: bool = False
    """A mistake of the user."""
    consequence: bool = False
    """Most likely of another rank's end, since it is about a lost connection."""
    rank: int | None = None
    """None if unknown."""
    age: FiniteFloat = 0.0
    """Seconds between the failure and the report."""


class Stuck(_Message):
    """A rank that was still there when its machine was ordered to stop."""

    rank: NonNegativeInt
    text: Text
    begun: NonNegativeInt | None = None
    """Collectives that it has begun; None if unknown."""
    halted: bool = False
    """It was stopped by SIGSTOP."""


class Outcome(_Message):
    """How a start has ended on a machine."""

    code: int
    """Exit code of the launcher; that of an ordered stop means nothing."""
    stopped: Signal | None = None
    """The signal on which the ranks have saved and stopped."""
    cause: Cause | None = None
    stuck: list[Stuck] = []
    full: bool = False
    """The disk is full."""


class Details(_Message):
    """What changes with the state only."""

    facts: Facts = Facts()
    outcome: Outcome | None = None


class Report(_Message):
    """What a machine does now."""

    machine: NonNegativeInt
    id: Name
    """Of the process of plsc run: another one for each call."""
    number: NonNegativeInt
    """Counts the reports of a process."""
    host: Name
    address: Name
    state: Literal["ready", "running", "ended", "refused", "over"]
    """ready: could start. ended: the start of `generation` has. refused: there is a mistake, `outcome` has
    it.
    over: plsc run ends."""
    generation: NonNegativeInt
    """Of the start that it has made last."""
    began: bool = False
    """A rank of that start has begun."""
    signal: Signal | None = None
    """By which it was asked to stop."""
    agreement: Name = ""
    """That of the last order."""
    seen: NonNegativeInt = 0
    """Lines of that agreement that it has printed."""
    time: FiniteFloat = 0.0
    """Its clock."""
    changes: NonNegativeInt = 0
    """Counts the changes of `details`."""
    details: Details | None = None
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
    """wait: go on as you are. prepare: get ready for a start. stop: end the ranks at once. end: end plsc
    run."""
    generation: NonNegativeInt = 0
    seen: NonNegativeInt = 0
    """Lines before these `lines`."""
    lines: list[Text] = []
    """To print."""
    start: StartOrder | None = None
    code: int = 0
    """Exit code of plsc run."""
    known: NonNegativeInt = 0
    """The changes of the details that are known."""


class Server:
    """Serves reports at host:port until it is closed.

    Args:
        host: "": all interfaces. answer: called by several threads.
        agreement: that of its orders. keyed: hear only what this secret has signed.
        say: is called with a line when the reports of an address are refused.

    Raises UserError if it cannot listen there.
    """

    def __init__(
        self,
        host: str,
        port: int,
        answer: Callable[[Report], Order],
        agreement: str = "",
        keyed: Secret | None = None,
        say: Callable[[str], object] = lambda line: None,
    ):
        self._answer = answer
        self._agreement = agreement
        self._secret = keyed
        self._say = say
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}  # the last report of each process, of those that are signed
        self._warned: set[str] = set()
        try:
            self._listener = _Listener((host, port), _handler(self._respond))
        except OSError as error:
            raise UserError(
                f"--master: cannot listen on port {port} of this machine, number 0 ({error.strerror}); is another run at work? "
                "name another port, the same on all machines"
            ) from error
        threading.Thread(target=self._listener.serve_forever, args=(0.1,), daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown()
        self._listener.server_close()

    def _respond(self, path: str, body: bytes, signature: str, address: str) -> tuple[int, bytes, str]:
        """Return the status, the order for a report, and its signature."""
        if self._secret and not self._secret.signed(signature, b"POST", path.encode(), body):
            remedy = f"set the same {secret.NAME} on all machines"
            self._warn(address, f"it is not signed by this run's secret; {remedy}")
            return _refusal(
                403, f"machine 0 has a secret that has not signed this machine's reports; {remedy}"
            )
        try:
            order = self._hear(body)
        except ValueError as error:
            self._warn(address, str(error))
            return _refusal(400, f"machine 0 has refused this machine's report: {error}")
        if order is None:
            return 409, b"", ""
        content = order.model_dump_json().encode()
        return 200, content, self._secret.sign(b"order", signature.encode(), content) if self._secret else ""

    def _hear(self, body: bytes) -> Order | None:
        """Return the order for a report; None for one that was heard before. Raises ValueError for what is
        none."""
        report = _read(body)
        if self._secret is None:
            return self._answer(report)
        if (
            report.agreement != self._agreement
        ):  # it may be as old as another run: the next one names this one
            return Order(agreement=self._agreement, action="wait")
        with self._lock:
            if report.number <= self._numbers.get(report.id, -1):
                return None
            self._numbers[report.id] = report.number
        return self._answer(report)

    def _warn(self, address: str, why: str) -> None:
        with self._lock:
            if address in self._warned or len(self._warned) == _MOST_WARNINGS:
                return
            self._warned.add(address)
        self._say(f"WARNING a report from {address} was refused: {why}")


def _refusal(status: int, line: str) -> tuple[int, bytes, str]:
    """Return an answer that ends plsc run on the machine that asks, if it hears what is not signed."""
    order = Order(agreement="", action="end", code=2, lines=[f"ERROR {line}"])
    return status, order.model_dump_json().encode(), ""


def _read(body: bytes) -> Report:
    """Read a report that another machine has sent. Raises ValueError, whose text is one line."""
    if sum(map(body.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise ValueError(f"it has more than {_MOST_VALUES:,} values")
    try:
        report = Report.model_validate_json(body)
    except ValidationError as error:
        key, message = first_problem(error)
        raise ValueError(
            f"{shown(key or 'it')[:200]}: {shown(message)[:200]}; install the same version of plsc on all machines"
        ) from None
    if report.machine == 0:
        raise ValueError("--rank 0: is the machine that --master names; give each machine its own")
    outcome = report.details and report.details.outcome
    if report.state == "refused" and report.details and not (outcome and outcome.cause):
        raise ValueError("details.outcome.cause: is not there; a machine that is refused says why")
    return report


def _handler(
    respond: Callable[[str, bytes, str, str], tuple[int, bytes, str]],
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or len(length) > 9 or int(length) > _MOST_BYTES:
                self.send_error(400)
                return
            body = self.rfile.read(int(length))
            if len(body) < int(length):  # whoever asked has gone, or takes too long
                return
            given = self.headers.get(secret.HEADER, "")
            status, content, signature = respond(self.path, body, given, self.client_address[0])
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.send_header(secret.HEADER, signature)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


class _Listener(ThreadingHTTPServer):
    """Listens; connections are bounded in number, in all and of one address, and in time."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, where: tuple[str, int], handler: type[BaseHTTPRequestHandler]):
        self._open: dict[socket.socket, tuple[str, float]] = {}  # address, and when it came
        self._lock = threading.Lock()
        super().__init__(where, handler)

    def server_bind(self) -> None:  # HTTPServer's asks for the name of the host, which may take long
        socketserver.TCPServer.server_bind(self)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        with self._lock:
            of_one = sum(address == client_address[0] for address, _ in self._open.values())
            if len(self._open) >= _MOST_CONNECTIONS or of_one >= _MOST_OF_ONE:
                return False
            self._open[request] = client_address[0], time.monotonic()
            return True

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections that have taken too long, however they send; called ten times a second."""
        late = time.monotonic() - _TIMEOUT
        with self._lock:
            for request, (_, came) in self._open.items():
                if came < late:
                    with contextlib.suppress(OSError):
                        request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # else whoever asked has gone; it asks again
            super().handle_error(request, client_address)


class Client:
    """Posts this machine's report to the first machine twice a second, in a thread, while `post` is called.

    Attributes: `order`, the last one; `contact`, when it came (time.monotonic), at first when this was made;
    `mistake`, a line about orders that the secret has not signed, "" without one.
    """

    def __init__(self, host: str, port: int, keyed: Secret | None = None):
        self.order: Order | None = None
        self.mistake = ""
        self._secret = keyed
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
        body = numbered.model_dump_json().encode()
        signature = self._secret.sign(b"POST", b"/", body) if self._secret else ""
        headers = {"Content-Type": "application/json", secret.HEADER: signature}
        connection = http.client.HTTPConnection(*self._where, timeout=_TIMEOUT)
        with contextlib.closing(connection):
            connection.request("POST", "/", body, headers)
            answer = connection.getresponse()
            content = answer.read(_MOST_BYTES)
            order = Order.model_validate_json(content)
            given = answer.getheader(secret.HEADER, "")
            if self._secret and not self._secret.signed(given, b"order", signature.encode(), content):
                host, port = self._where
                self.mistake = f"PLSC_RUN_SECRET: machine 0 ({host}:{port}) has another one, or none; set the same on all machines"
                raise ValueError(self.mistake)
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
