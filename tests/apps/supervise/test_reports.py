"""Reports and orders over real sockets, and what else may come to that port."""

import contextlib
import http.client
import json
import socket
import threading
import time

import pytest

from plsc.apps.supervise import reports
from plsc.apps.supervise.address import interface_of, listening_address, own_address
from plsc.apps.supervise.facts import Facts
from plsc.apps.supervise.machines import Machine
from plsc.apps.supervise.options import Machines, Options
from plsc.apps.supervise.reports import Cause, Client, Details, Order, Outcome, Report, Server
from plsc.apps.supervise.secret import HEADER, NAME, Secret, read_secret
from plsc.errors import UserError

REPORT = Report(machine=1, id="a", number=0, host="h", address="x", state="ready", generation=0)


@pytest.fixture
def client_of():
    """Make clients that are closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda port: stack.enter_context(contextlib.closing(Client("127.0.0.1", port)))


def serve(*more, host="127.0.0.1"):
    """A server at a port that the system chooses, so that no other program has it; and the port."""
    server = Server(host, 0, *more)
    return server, server._listener.server_address[1]


@pytest.fixture
def served():
    """A server's port, and what it was told."""
    seen = []

    def answer(report):
        seen.append(report)
        return Order(agreement="b", action="wait", lines=["hello\udce9"], seen=report.seen)

    server, port = serve(answer)
    yield port, seen
    server.close()


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_a_report_arrives_as_it_was_and_its_order_comes_back(served, client_of):
    port, seen = served
    client = client_of(port)
    report = REPORT.model_copy(
        update={"details": Details(facts=Facts(config={"a": [1, None]})), "changes": 2}
    )
    client.post(report, at_once=True)
    assert until(lambda: client.order) and client.order.lines == ["hello\\xe9"]
    assert seen[0].details.facts.config == {"a": [1, None]} and seen[0].changes == 2
    assert until(lambda: len(seen) > 2)
    assert [each.number for each in seen] == sorted({each.number for each in seen})


def test_text_and_numbers_that_json_has_not_arrive_and_are_the_same_on_both_sides(served, client_of):
    port, seen = served
    outcome = Outcome(code=1, cause=Cause(text="no such file: caf\udce9.jpg"))
    facts = Facts(host="\udce9", config={"a": ["\udce9", float("inf")]})
    details = Details(facts=facts, outcome=outcome)
    client_of(port).send(REPORT.model_copy(update={"details": details}))
    assert seen[0].details == details
    assert seen[0].details.facts == Facts(host="\\xe9", config={"a": ["\\xe9", "inf"]})
    assert seen[0].details.outcome.cause.text == "no such file: caf\\xe9.jpg"


@pytest.mark.parametrize(
    "body, length",
    [(b"{}", None), (b"\xff" * 10, None), (b"[" * 100_000, None), (b"", 1 << 60), (b"", -1)],
)
def test_what_is_no_report_is_refused_and_the_server_goes_on(served, body, length, client_of):
    port, seen = served
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/", body, {} if length is None else {"Content-Length": str(length)})
    assert connection.getresponse().status == 400 and not seen
    client_of(port).send(REPORT)
    assert len(seen) == 1


def test_a_connection_that_says_nothing_keeps_no_other_from_being_heard(served, client_of):
    port, seen = served
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    client_of(port).send(REPORT)
    assert len(seen) == 1
    for each in idle:
        each.close()


def test_a_client_goes_on_asking_until_somebody_answers(client_of):
    with socket.socket() as held:  # it does not listen, and keeps others from listening
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        client = client_of(port)
        client.post(REPORT, at_once=True)
        began = client.contact
        time.sleep(0.3)
        assert client.order is None and client.contact == began
    server = Server("", port, lambda report: Order(agreement="b", action="wait"))
    assert until(lambda: client.order) and client.contact > began
    server.close()


def test_an_answer_of_another_program_is_no_contact(client_of):
    with socket.create_server(("127.0.0.1", 0)) as other:

        def talk():
            connection, _ = other.accept()
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            connection.close()

        threading.Thread(target=talk, daemon=True).start()
        with pytest.raises(ValueError, match="agreement"):
            client_of(other.getsockname()[1]).send(REPORT)


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            UserError, match=rf"^--master: cannot listen on port {port} of this machine, number 0"
        ):
            Server("", port, lambda report: None)


def test_the_address_is_that_on_the_way_to_the_first_machine():
    assert own_address("127.0.0.1", 1) == ("127.0.0.1", "lo")
    assert interface_of("203.0.113.7") is None
    with pytest.raises(
        UserError, match="^--master: no.such.host.invalid cannot be reached from this machine"
    ):
        own_address("no.such.host.invalid", 1)


# ---- what does harm


def post(port, body, signature=""):
    """The status and the order that a report gets."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", "/", body, {HEADER: signature})
        answer = connection.getresponse()
        text = answer.read()
    return answer.status, Order.model_validate_json(text) if text.startswith(b"{") else None


def forged(**changes):
    return json.dumps({**json.loads(REPORT.model_dump_json()), **changes}).encode()


def test_the_first_machine_listens_on_the_address_of_the_master_alone(monkeypatch):
    server, port = serve(print, host=listening_address("127.0.0.1"))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port))
    server.close()
    assert listening_address("localhost") == "127.0.0.1"
    assert listening_address("203.0.113.7") == "" == listening_address("no.such.host.invalid")
    monkeypatch.setattr(
        socket, "gethostbyname", {"node0": "127.0.1.1"}.get
    )  # as /etc/hosts has it there alone
    assert listening_address("node0") == ""


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"details": {"facts": {"versions": 5, "config": [1]}}}, "details.facts.config: "),
        ({"details": {"facts": {"host": 5}}}, "details.facts.host: "),
        ({"details": {"facts": {"free_memory": "much"}}}, "details.facts.free_memory: "),
        ({"details": {"facts": {"data": {"a": {"samples": 1}}}}}, "details.facts.data.a."),
        ({"details": {"facts": {"data": [1]}}}, "details.facts.data: "),
        ({"details": {"facts": {"config": {"a": [[]] * 100_001}}}}, "it has more than 100,000 values"),
        ({"host": "h" * 256}, "host: "),
        ({"machine": 0}, "--rank 0: is the machine that --master names"),
        ({"time": 1e999}, "time: "),
        ({"state": "refused", "details": {}}, "details.outcome.cause: "),
        ({"state": "refused", "details": {"outcome": {"code": 2}}}, "details.outcome.cause: "),
        ({"machine": "\x1b[2J"}, "machine: "),
    ],
)
def test_a_forged_report_is_a_line_on_both_sides(changes, why):
    said, seen = [], []
    server, port = serve(seen.append, "", None, said.append)
    for _ in range(3):
        status, order = post(port, forged(**changes))
        assert (status, order.action, order.code) == (400, "end", 2)
    server.close()
    assert not seen
    (line,) = said  # once
    assert line.startswith(f"WARNING a report from 127.0.0.1 was refused: {why}") and line.isprintable()
    assert order.lines == [f"ERROR machine 0 has refused this machine's report: {line.partition(': ')[2]}"]


def test_a_nested_report_is_refused(served):
    port, seen = served
    nested = b'{"details": {"facts": {"config": {"a": ' + b"[" * 40_000 + b"]" * 40_000 + b"}}}}"
    assert post(port, nested)[0] == 400 and not seen


def test_a_report_has_at_most_a_megabyte(served):
    port, seen = served
    config = {"a": "b" * (reports._MOST_BYTES - 500)}
    assert post(port, forged(details={"facts": {"config": config}}))[0] == 200 and len(seen) == 1
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.putrequest("POST", "/")
    connection.putheader("Content-Length", str(reports._MOST_BYTES + 1))
    connection.endheaders()
    assert connection.getresponse().status == 400


def test_connections_are_bounded_in_number_and_time(served, client_of, monkeypatch):
    """One that sends a byte now and then, too; the port is free again afterwards."""
    port, seen = served
    monkeypatch.setattr(reports, "_TIMEOUT", 0.5)
    slow = []
    for _ in range(reports._MOST_OF_ONE + 20):
        slow.append(socket.create_connection(("127.0.0.1", port), timeout=60))
        slow[-1].sendall(b"P")
    threads = [thread for thread in threading.enumerate() if "process_request" in thread.name]
    assert len(threads) <= reports._MOST_OF_ONE
    end = time.monotonic() + 60
    alive = slow
    while alive and time.monotonic() < end:
        alive = [each for each in alive if not _is_closed(each)]
        time.sleep(0.05)
    assert not alive
    client_of(port).send(REPORT)
    assert len(seen) == 1


def _is_closed(connection):
    """Send another byte, and say whether the other end is gone."""
    try:
        connection.sendall(b"O")
        connection.setblocking(False)
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(60)


# ---- the secret


SECRET = Secret("sixteen letters.")


@pytest.fixture
def keyed():
    """A server with a secret: its port, what it was told, and what it said."""
    seen, said = [], []

    def answer(report):
        seen.append(report)
        return Order(agreement="b", action="wait", known=1)

    server, port = serve(answer, "b", SECRET, said.append)
    yield port, seen, said
    server.close()


def test_what_the_secret_has_signed_is_heard(keyed):
    port, seen, said = keyed
    with contextlib.closing(Client("127.0.0.1", port, SECRET)) as client:
        client.send(REPORT)
        assert not seen and client.order.agreement == "b"  # which the next one names
        client.send(REPORT.model_copy(update={"agreement": "b"}))
        assert len(seen) == 1 and not client.mistake and not said and client.order.known == 1


@pytest.mark.parametrize("secret", [None, Secret("another sixteen letters")])
def test_another_secret_or_none_is_refused_with_a_line_on_both_sides(keyed, secret):
    port, seen, said = keyed
    same = "set the same PLSC_RUN_SECRET on all machines"
    with contextlib.closing(Client("127.0.0.1", port, secret)) as client:
        for _ in range(2):
            with contextlib.suppress(ValueError):
                client.send(REPORT.model_copy(update={"agreement": "b"}))
        if secret:
            assert client.mistake.startswith(
                f"{NAME}: machine 0 (127.0.0.1:{port}) has another one, or none; set"
            )
        else:
            assert (client.order.action, client.order.code) == ("end", 2)
            assert client.order.lines == [
                f"ERROR machine 0 has a secret that has not signed this machine's reports; {same}"
            ]
    assert not seen and said == [
        f"WARNING a report from 127.0.0.1 was refused: it is not signed by this run's secret; {same}"
    ]


def test_a_first_machine_without_the_secret_is_not_obeyed(served):
    port, _ = served
    with contextlib.closing(Client("127.0.0.1", port, SECRET)) as client:
        with pytest.raises(ValueError, match=NAME):
            client.send(REPORT)
        assert client.order is None and client.mistake


def test_a_report_is_heard_once_and_in_its_run_only(keyed):
    port, seen, _ = keyed
    body = forged(agreement="b", number=7)
    signature = SECRET.sign(b"POST", b"/", body)
    assert [post(port, body, signature)[0] for _ in range(3)] == [200, 409, 409] and len(seen) == 1
    older = forged(agreement="b", number=6)
    assert post(port, older, SECRET.sign(b"POST", b"/", older))[0] == 409
    for agreement in ("", "a"):  # of another run, or of an earlier process of the first machine
        other = forged(agreement=agreement, number=9)
        status, order = post(port, other, SECRET.sign(b"POST", b"/", other))
        assert (status, order.action, order.lines) == (200, "wait", [])
    changed = body.replace(b'"number": 7', b'"number": 8')
    assert changed != body and post(port, changed, signature)[0] == 403
    elsewhere = forged(agreement="b", number=10)
    assert post(port, elsewhere, SECRET.sign(b"POST", b"/other", elsewhere))[0] == 403
    assert post(port, elsewhere, SECRET.sign(b"order", b"", elsewhere))[0] == 403
    assert len(seen) == 1


def test_an_order_answers_one_report(keyed):
    """An order that was heard earlier is no answer to another report."""
    port, _, _ = keyed
    client = Client("127.0.0.1", port, SECRET)
    client.close()
    client.send(REPORT)
    earlier = SECRET.sign(b"order", b"of another report", b"{}")
    answer = http.client.HTTPResponse
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ValueError, match=NAME):
        patch.setattr(answer, "getheader", lambda self, name, default: earlier)
        client.send(REPORT)


def test_a_machine_with_another_secret_ends_with_a_line(keyed, monkeypatch):
    port, _, _ = keyed
    monkeypatch.setenv(NAME, "another sixteen letters")
    machine = Machine(Options([], max_failures=100, machines=Machines(2, 2, 1, "127.0.0.1", port, 60.0)))
    monkeypatch.setattr(machine, "_prepare", lambda: None)
    with pytest.raises(
        UserError, match=f"^{NAME}: machine 0 .* has another one, or none; set the same on all"
    ):
        machine._follow()
    machine._refuse(UserError("x"))  # which machine 0 does not hear: no 10 s of trying
    machine._client.close()


def test_a_secret_is_long_enough(monkeypatch):
    for text in ("", "fifteen letters"):
        monkeypatch.setenv(NAME, text)
        with pytest.raises(
            UserError, match=f"^{NAME}: must have 16 characters or more, .*make one: python -c"
        ):
            read_secret()
    monkeypatch.delenv(NAME)
    assert read_secret() is None
