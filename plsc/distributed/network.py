"""Measure how fast the ranks communicate: latency and bandwidth of the collectives that training calls.

A bandwidth is that of each rank's link if the ranks stand in a ring, over which all_reduce sends an array of
S bytes 2 S (W - 1) / W bytes, and all_gather S (W - 1) / W (the "bus bandwidth" of NVIDIA's nccl-tests,
doc/PERFORMANCE.md): it does not depend on the number of ranks, and can be compared with what the network is
sold as. Random numbers are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import paddle

from plsc.distributed.collectives import (
    all_reduce,
    every,
    gather_rows,
    reduce_scatter_rows,
    world_size,
)
from plsc.distributed.device import finish
from plsc.utils import measure

COLLECTIVES = ("count", "sum", "gather", "reduce-scatter")
_SMALL = 8  # bytes, for the latency
_LARGE = 16 << 20  # bytes of the whole array, for the bandwidth
_PROBE = 1 << 20  # bytes, by which the number of rounds is decided; for the bandwidth too on slow networks
_SECONDS = 0.5  # for each of latency and bandwidth
_ROUNDS = 20  # at most
_FEWEST = 3  # with the large array, else the network is slow


class Network(NamedTuple):
    """Latencies in seconds, bandwidths in bytes per second."""

    sum_latency: float
    sum_bandwidth: float
    gather_latency: float
    gather_bandwidth: float

    def __str__(self) -> str:
        return (
            f"all_reduce {1e6 * self.sum_latency:.0f} us, {self.sum_bandwidth / 1e9:.3g} GB/s; "
            f"all_gather {1e6 * self.gather_latency:.0f} us, {self.gather_bandwidth / 1e9:.3g} GB/s"
        )


def time_collectives(asked: Iterable[tuple[str, int]], rounds: int) -> dict[tuple[str, int], float]:
    """Measure the median seconds of collectives on this rank, after a round that does not count. Every rank
    calls it.

    Args:
        asked: name (of COLLECTIVES) and bytes of each. The bytes are those of a rank's part: its array in a sum,
            its rows in a gather or a reduce-scatter; "count" has one number.
        rounds: how often each is measured, the collectives in turn.
    """
    work = {(name, size): _collective(name, size) for name, size in asked}
    measure.alternate(1, work, finish)
    return measure.alternate(rounds, work, finish)


def _collective(name: str, size: int) -> Callable[[], object]:
    if name == "count":
        return lambda: every(True)
    numbers, ranks = size // 4, world_size()
    x = paddle.zeros([numbers * ranks if name == "reduce-scatter" else numbers])
    counts = [numbers] * ranks
    return {
        "sum": lambda: all_reduce(x),
        "gather": lambda: gather_rows(x, counts),
        "reduce-scatter": lambda: reduce_scatter_rows(x, counts),
    }[name]


def measure_network() -> Network:
    """Measure all_reduce and all_gather over all ranks, two or more, in about a second. Every rank calls it.

    Collectives: all ranks agree on the number of rounds by one all_reduce.
    """
    ranks = world_size()
    probed = time_collectives([("sum", _PROBE)], 1)["sum", _PROBE]
    seconds = all_reduce(paddle.to_tensor([probed]), "max").item()
    size, rounds = _LARGE, _rounds(seconds * _LARGE / _PROBE)
    if rounds < _FEWEST:
        size, rounds = _PROBE, _rounds(seconds)
    small = time_collectives([("sum", _SMALL), ("gather", _SMALL)], _rounds(seconds))
    part = size // ranks // 4 * 4
    large = time_collectives([("sum", size), ("gather", part)], rounds)
    return Network(
        small["sum", _SMALL],
        2 * size * (ranks - 1) / ranks / large["sum", size],
        small["gather", _SMALL],
        part * (ranks - 1) / large["gather", part],
    )


def _rounds(seconds: float) -> int:
    """Return how many rounds of two collectives that take so long are measured, besides the first one."""
    return max(1, min(_ROUNDS, int(_SECONDS / (2 * seconds)) - 1))
