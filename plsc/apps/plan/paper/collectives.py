"""Predict the time of collectives from bytes, latency and bandwidth.

Try it: 100 MB summed over 8 ranks whose links take 10 us and 100 GB/s,

    all_reduce(100e6, 8, Link(10e-6, 100e9))     # 0.0019 s: a ring, 2 x 7/8 x 100 MB over each link

n ranks, each with the same link. A ring passes n pieces round; a tree sends all of it up and down, in few
steps.
Sources: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009
(ring); Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009
(tree, as in NCCL).
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Link(NamedTuple):
    """What connects a rank, or a machine, with the others."""

    latency: float
    """Seconds of a step."""
    bandwidth: float
    """Bytes/s in one direction."""


def ring_all_reduce(size: float, ranks: int, link: Link) -> float:
    """Predict the seconds of a sum of `size` bytes by a ring: 2 (n - 1) steps of size / n bytes."""
    return 2 * (ranks - 1) * (link.latency + size / ranks / link.bandwidth)


def tree_all_reduce(size: float, ranks: int, link: Link) -> float:
    """Predict the seconds of a sum of `size` bytes by two trees: up and down, log2 n steps each."""
    if ranks == 1:
        return 0.0
    return 2 * (math.ceil(math.log2(ranks)) * link.latency + size / link.bandwidth)


def all_reduce(size: float, ranks: int, link: Link) -> float:
    """Predict the seconds of a sum of `size` bytes by the faster of ring and tree."""
    return min(ring_all_reduce(size, ranks, link), tree_all_reduce(size, ranks, link))


def all_gather(size: float, ranks: int, link: Link) -> float:
    """Predict the seconds after which each rank has the `size` bytes of all: a ring of n - 1 steps.

    A reduce-scatter of `size` bytes takes as long.
    """
    return (ranks - 1) * (link.latency + size / ranks / link.bandwidth)


class Machines(NamedTuple):
    """Machines with the same number of ranks each; collectives go inside a machine and between machines in
    turn."""

    nodes: int
    gpus: int
    """Ranks of a machine."""
    inside: Link
    """Of a rank."""
    between: Link
    """Of a machine: its ranks share the bandwidth."""

    def all_reduce(self, size: float) -> tuple[float, float]:
        """Predict the seconds inside and between the machines: reduce-scatter, sum of the pieces, all_gather.

        Each rank sums a piece of size / gpus bytes with its fellows on the other machines, so `size` bytes of
        a machine go over its network. A few bytes are summed whole where that is faster.
        """
        between = all_reduce(size, self.nodes, self.between)
        inside = min(2 * all_gather(size, self.gpus, self.inside), all_reduce(size, self.gpus, self.inside))
        return inside, between

    def all_gather(self, size: float) -> tuple[float, float]:
        """Predict the seconds inside and between the machines after which each rank has all `size` bytes."""
        return all_gather(size, self.gpus, self.inside), all_gather(size, self.nodes, self.between)
