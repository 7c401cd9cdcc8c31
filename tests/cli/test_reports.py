"""Reports and orders over real sockets, and what else may come to that port."""

import contextlib
import http.client
import socket
import threading
import time

import pytest

from plsc.cli.commands.run.address import free_port, interface_of, own_address
from plsc.cli.commands.run.reports import Cause, Client, Details, Order, Outcome, Report, Server
from plsc.errors import UserError

REPORT = Report(machine=1, id="a", number=0, host="h", address="x", state="ready", generation=0)


@pytest.fixture
def client_of():
    """Make clients that are closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda port: stack.enter_context(contextlib.closing(Client("127.0.0.1", port)))


@pytest.fixture
def served():
    """A server's port, and what it was told."""
    seen = []

    def answer(report):
        seen.append(report)
        return Order(agreement="b", action="wait", lines=["hello\udce9"], seen=report.seen)

    port = free_port()
    server = Server(port, answer)
    yield port, seen
    server.close()


def until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_a_report_arrives_as_it_was_and_its_order_comes_back(served, client_of):
    port, seen = served
    client = client_of(port)
    report = REPORT.model_copy(update={"details": Details(facts={"a": [1, None]}), "changes": 2})
    client.post(report, at_once=True)
    assert until(lambda: client.order) and client.order.lines == ["hello\\xe9"]
    assert seen[0].details.facts == {"a": [1, None]} and seen[0].changes == 2
    assert until(lambda: len(seen) > 2)
    assert [each.number for each in seen] == sorted({each.number for each in seen})


def test_text_and_numbers_that_json_has_not_arrive_and_are_the_same_on_both_sides(served, client_of):
    port, seen = served
    outcome = Outcome(code=1, cause=Cause(text="no such file: caf\udce9.jpg"))
    details = Details(facts={"a": ["\udce9", float("inf")]}, survey={"folder": "\udce9"}, outcome=outcome)
    client_of(port).send(REPORT.model_copy(update={"details": details}))
    assert seen[0].details == details and seen[0].details.facts == {"a": ["\\xe9", "inf"]}
    assert seen[0].details.outcome.cause.text == "no such file: caf\\xe9.jpg"


@pytest.mark.parametrize(
    "body, length",
    [(b"{}", None), (b"\xff" * 10, None), (b"[" * 100_000, None), (b"", 1 << 60), (b"", -1)],
)
def test_what_is_no_report_is_refused_and_the_server_goes_on(served, body, length, client_of):
    port, seen = served
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
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
    port = free_port()
    client = client_of(port)
    client.post(REPORT, at_once=True)
    began = client.contact
    time.sleep(0.3)
    assert client.order is None and client.contact == began
    server = Server(port, lambda report: Order(agreement="b", action="wait"))
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
            Server(port, lambda report: None)


def test_the_address_is_that_on_the_way_to_the_first_machine():
    assert own_address("127.0.0.1", 1) == ("127.0.0.1", "lo")
    assert interface_of("203.0.113.7") is None
    with pytest.raises(
        UserError, match="^--master: no.such.host.invalid cannot be reached from this machine"
    ):
        own_address("no.such.host.invalid", 1)
