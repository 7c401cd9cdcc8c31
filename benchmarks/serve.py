"""Load a running plsc serve from several clients, and measure how long it takes to answer.

    plsc serve -c output/config.yaml --port 8000
    python -m benchmarks serve --url http://127.0.0.1:8000 --picture a.png --clients 1 16

A client is a thread with a connection of its own, which asks again when it has its answer. One client shows
the time of a lone request, several what batching gives.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.machine import describe_machine, format_machine
from plsc.errors import UserError, reading, shown
from plsc.utils.text import table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the service; http only")
    parser.add_argument("--path", default="/embed", help="what to ask, such as /search?top=5")
    parser.add_argument("--picture", type=Path, required=True, help="file that each request brings")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16], help="at once; a row each")
    parser.add_argument(
        "--requests", type=int, nargs="+", default=[500], help="of all clients of a row together"
    )


def serve(args: argparse.Namespace) -> dict:
    """Measure the answers of a running plsc serve."""
    address = urlsplit(args.url)
    if address.scheme != "http" or not address.hostname:
        raise UserError(f"--url: must be like http://127.0.0.1:8000, got {shown(args.url)}")
    if min(*args.clients, *args.requests) < 1:
        raise UserError("--clients, --requests: must be 1 or more")
    with reading(f"--picture: {args.picture}"):
        picture = args.picture.read_bytes()
    load = _Load(address.hostname, address.port or 80, args.path, picture)
    rows = [load.row(clients, requests) for clients in args.clients for requests in args.requests]
    return {**describe_machine(), "path": args.path, "rows": rows}


class _Load:
    """Sends the same request again and again."""

    def __init__(self, host: str, port: int, path: str, picture: bytes):
        self._address = host, port
        self._path = path
        self._picture = picture
        token = os.environ.get("PLSC_SERVE_TOKEN")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            self._answer("GET", "/health", self._connect())
        except (OSError, HTTPException) as error:
            raise UserError(
                f"--url: {host}:{port} does not answer ({error}); start plsc serve there"
            ) from error

    def _connect(self) -> HTTPConnection:
        return HTTPConnection(*self._address, timeout=60)

    def row(self, clients: int, requests: int) -> dict:
        """Measure so many requests of so many clients at once."""
        seconds: list[float] = []
        numbers = iter(range(requests))
        lock = threading.Lock()

        def ask() -> None:
            connection = self._connect()
            while True:
                with lock:
                    if next(numbers, None) is None:
                        return
                began = time.perf_counter()
                try:
                    status, _ = self._answer("POST", self._path, connection, self._picture)
                except (OSError, HTTPException):  # counted as an error: it has no time
                    connection.close()
                    continue
                if status < 300:
                    seconds.append(time.perf_counter() - began)

        threads = [threading.Thread(target=ask) for _ in range(clients)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {
            "clients": clients,
            "requests": requests,
            "errors": requests - len(seconds),
            "per_second": len(seconds) / (time.perf_counter() - began),
            **_quantiles(seconds),
            "service_mb": self._memory(),
        }

    def _answer(
        self, method: str, path: str, connection: HTTPConnection, body: bytes | None = None
    ) -> tuple[int, bytes]:
        connection.request(method, path, body, self._headers)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def _memory(self) -> float | None:
        """Return the service's resident memory in MB; None where it does not say."""
        _, text = self._answer("GET", "/metrics", self._connect())
        for line in text.decode().splitlines():
            if line.startswith("process_resident_memory_bytes "):
                return float(line.split()[1]) / 2**20
        return None


def _quantiles(seconds: list[float]) -> dict:
    if len(seconds) < 2:
        return {"p50_ms": None, "p99_ms": None}
    hundredths = statistics.quantiles(seconds, n=100, method="inclusive")
    return {"p50_ms": 1e3 * hundredths[49], "p99_ms": 1e3 * hundredths[98]}


def show(result: dict) -> str:
    heads = ["clients", "requests", "errors", "requests/s", "p50 ms", "p99 ms", "memory MB"]
    rows = [list(row.values()) for row in result["rows"]]
    return f"{format_machine(result)}\n{result['path']}\n{table(rows, heads)}"
