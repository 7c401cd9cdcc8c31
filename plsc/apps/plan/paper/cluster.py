"""Predict the time of a step on a cluster from products, bytes and collectives; nothing is measured.

A part takes the time of its products, and that of its bytes through memory or over a link, each at the speed
of the data sheet times an efficiency. The two add up, since products and the passes between them are kernels
of their own. The efficiencies are the few constants below: found from some published figures, judged by
others (docs/planning.md, `python -m benchmarks published`).

    seconds(Work(...), Cluster(DEVICES["a100"], nodes=8, gpus=8, network=200e9))     # {"forward": ..., ...}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from plsc.apps.plan.paper.collectives import Link, Machines
from plsc.apps.plan.paper.devices import Device

# Shares of the data sheet's speeds that programs reach. Above 1: cuDNN computes 3 x 3 convolutions in float32
# with fewer products than are counted (Winograd).
CONVOLUTIONS = {"float32": 1.37, "tf32": 0.41, "float16": 0.41, "bfloat16": 0.41}
MATRICES = 0.8  # products of large matrices
MEMORY = 0.8
NVLINK = 0.8
PCIE = 0.11  # between GPUs of a machine, whose ways to each other cross its processors
NETWORK = 0.8
HIDDEN = 0.5  # share of the gradients' time between machines that passes behind the backward pass
LAUNCH = 10e-6  # seconds of a kernel's launch that nothing hides
STEP_INSIDE = 8e-6  # seconds of a collective's step inside a machine
STEP_BETWEEN = 20e-6  # and between machines
HOST_BANDWIDTH = 20e9  # bytes/s of the machine's memory for each GPU; assumed, not checked
DISK_BANDWIDTH = 3e9  # bytes/s of a machine's disk; assumed, not checked

FORWARD = 0.4  # share of a network's passes through memory; counted (`python -m benchmarks step --count`)
# Bytes moved for each trained number of the network: 20.0 by the update and 8.2 by the check; counted for
# IResNet18.
OPTIMIZER_BYTES = 28


class Cluster(NamedTuple):
    """Machines with the same number of the same GPUs."""

    device: Device
    nodes: int
    gpus: int
    """Of a machine; each is a rank."""
    network: float
    """Bits/s of a machine's network in one direction."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus

    @property
    def machines(self) -> Machines:
        nvlink, pcie = self.device.nvlink, self.device.pcie
        inside = Link(STEP_INSIDE, NVLINK * nvlink if nvlink else PCIE * pcie)
        return Machines(self.nodes, self.gpus, inside, Link(STEP_BETWEEN, NETWORK * self.network / 8))


class HeadStyle(NamedTuple):
    """How a program's head moves logits [N, K] and rows [K, D] through memory in a step."""

    logits: float
    """Passes over the logits."""
    rows: float
    """Passes over the rows."""
    drawn_rows: float = 0.0
    """More of them where the step's classes are drawn."""
    itemsize: int = 4
    """Bytes of a number of these."""
    draw: float = 0.0
    """Seconds of drawing the step's classes, for each class of the shard."""
    scattered: bool = False
    """Whether the embeddings' gradients are summed by a reduce-scatter, half of an all_reduce."""


# Ours: 7.0 GB for 125,000 classes, N = 1024, D = 512 (docs/labbook.md, "A step on a GPU, counted"). Heads of
# several N and D tell logits from rows. Drawn rows are taken out, updated in copies and put back; the draw
# itself is made by a thread of the host, a step ahead.
IN_BLOCKS = HeadStyle(logits=7, rows=13, drawn_rows=8)
RECOMPUTED = HeadStyle(logits=10, rows=18, drawn_rows=8)  # logits beyond the budget are computed again
# Of these passes, those of the update, which a head of frozen centres does without.
UPDATE_ROWS = 5
UPDATE_DRAWN_ROWS = 6
FROZEN_KERNELS = 83  # launches of a head of frozen centres; all counted in the same way


@dataclass(frozen=True)
class Work:
    """What a rank does in a step, counted."""

    samples: int
    """B, of the rank."""
    macs: float
    """Multiply-accumulates of the network for an image."""
    kept: float
    """Bytes of an image that autograd keeps where nothing is recomputed."""
    passes: float
    """How often the network moves as many bytes through memory, forward and backward."""
    parameters: int
    """Numbers of the network that are trained."""
    kernels: float
    """Launches."""
    dtype: str
    """Of the network's products."""
    classes: int
    """K, which the rank compares with the N samples."""
    shard: int
    """S, of which K are drawn."""
    width: int
    """D, numbers of a class centre."""
    head_dtype: str
    """Of the head's products."""
    head: HeadStyle = IN_BLOCKS
    head_products: int = 3
    """Products of N K D multiply-accumulates: logits, gradients of embeddings and of centres; 4 with logits
    computed again."""
    sharded: bool = True
    """False: every rank has all classes, compares its own samples with them, and their gradients are
    summed."""
    forwards: int = 1
    """Forward passes; accumulation and recomputation add one each."""
    fetched: float = 0.0
    """Bytes that the rank fetches from the machine's memory and writes back."""
    from_disk: float = 0.0
    """Bytes that the rank reads from the disk and writes."""


def seconds(work: Work, cluster: Cluster) -> dict[str, float]:
    """Predict the seconds of a step by part; their sum is the step's."""
    device = cluster.device
    memory = MEMORY * device.bandwidth
    speed = CONVOLUTIONS[work.dtype] * device.flops[work.dtype]
    forward = work.samples * (2 * work.macs / speed + FORWARD * work.passes * work.kept / memory)
    backward = work.samples * (4 * work.macs / speed + (1 - FORWARD) * work.passes * work.kept / memory)
    backward += (work.forwards - 1) * forward
    parts = {
        "forward": forward,
        "backward": backward,
        "launches": work.kernels * LAUNCH,
        "gather": _gather(work, cluster),
        "head": _head(work, cluster, memory),
        "reduce": _reduce(work, cluster, backward),
        "optimizer": OPTIMIZER_BYTES * work.parameters / memory,
        "bank": work.fetched / min(HOST_BANDWIDTH, device.pcie),
    }
    # The disk works beside the rest of the step.
    disk = work.from_disk * cluster.gpus / DISK_BANDWIDTH
    parts["bank"] += max(0.0, disk - sum(parts.values()))
    return parts


def samples_of_head(work: Work, cluster: Cluster) -> int:
    """Return N, the samples that a rank compares with its classes."""
    return work.samples * (cluster.ranks if work.sharded else 1)


def head_bytes_moved(work: Work, samples: int) -> float:
    """Return the bytes that the head moves through a GPU's memory for N samples."""
    style = work.head
    rows = style.rows + style.drawn_rows * (work.classes < work.shard)
    return style.itemsize * work.classes * (style.logits * samples + rows * work.width)


def _head(work: Work, cluster: Cluster, memory: float) -> float:
    samples = samples_of_head(work, cluster)
    products = work.head_products * 2 * samples * work.classes * work.width
    drawn = work.head.draw * work.shard * (work.classes < work.shard)
    speed = MATRICES * cluster.device.flops[work.head_dtype]
    return products / speed + head_bytes_moved(work, samples) / memory + drawn


def _gather(work: Work, cluster: Cluster) -> float:
    """Predict the collectives of a sharded head (docs/head.md, "The way of the data")."""
    if not work.sharded:
        return 0.0
    machines = cluster.machines
    samples = samples_of_head(work, cluster)
    embeddings = 4 * samples * work.width
    gradients = machines.all_gather if work.head.scattered else machines.all_reduce
    times = (
        machines.all_gather(embeddings),
        machines.all_gather(8 * samples),  # labels
        machines.all_reduce(2 * 4 * samples),  # maxima
        machines.all_reduce(4 * 4 * samples),  # sums
        gradients(embeddings),
    )
    return sum(inside + between for inside, between in times)


def _reduce(work: Work, cluster: Cluster, backward: float) -> float:
    """Predict the sum of the network's gradients, and of replicated centres', but for what the backward pass
    hides."""
    inside, between = cluster.machines.all_reduce(4 * work.parameters)
    time = inside + between - min(HIDDEN * between, backward)
    if not work.sharded:
        time += sum(cluster.machines.all_reduce(4 * work.shard * work.width))
    return time
