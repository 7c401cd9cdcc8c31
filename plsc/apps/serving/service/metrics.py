"""Count what the service does, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

disable_created_metrics()

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_PICTURES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The metrics of one service, in a registry of its own, with memory and processor time of the process.

    Args:
        waiting: how many pictures wait for the network. people: how many are in the gallery.
    """

    def __init__(self, waiting: Callable[[], int], people: Callable[[], int]):
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        kept = {"registry": self._registry}
        self._requests = Counter("plsc_requests", "Requests by path and status", ["path", "status"], **kept)
        self._seconds = Histogram(
            "plsc_request_seconds",
            "Time from a request's header to its answer",
            ["path"],
            buckets=_SECONDS,
            **kept,
        )
        self._batches = Histogram("plsc_batch_pictures", "Pictures of a batch", buckets=_PICTURES, **kept)
        self._embedding = Histogram(
            "plsc_batch_seconds", "Time of the network for a batch", buckets=_SECONDS, **kept
        )
        Gauge("plsc_waiting_pictures", "Pictures that wait for the network", **kept).set_function(waiting)
        Gauge("plsc_people", "Names in the gallery", **kept).set_function(people)

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """Count an answered request; `path` is that of a route, never what a client made up."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def count_batch(self, pictures: int, seconds: float) -> None:
        """Count a batch of the network."""
        self._batches.observe(pictures)
        self._embedding.observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
