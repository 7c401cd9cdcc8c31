"""Model the programs of other people whose speed and memory were published, to judge plsc plan's model by
them.

They are not plsc: all of them hold whole logits [N, K], and PyTorch's launches a kernel for each parameter
where plsc launches one for all. So each has a description of its own, read in its code, and a model of memory
of its own. Devices, collectives, efficiencies and the rest are those of plan/cluster.py.
"""

from __future__ import annotations

from typing import NamedTuple

from plsc.apps.plan.paper.cluster import Cluster, HeadStyle, Work, seconds
from plsc.apps.plan.paper.on_paper import CONTEXT, CONVOLUTIONAL

WIDTH = 512  # D of every published figure


class Network(NamedTuple):
    """What a network counts, of 3 x 112 x 112 images (`plsc.backbones.count`, plan/activations.py)."""

    macs: int
    kept: int
    """Bytes that autograd keeps of an image in float32."""
    parameters: int
    tensors: int


NETWORKS = {
    "IResNet50": Network(6_309_330_944, 70_878_720, 43_590_848, 237),
    "IResNet100": Network(12_089_606_144, 111_885_312, 65_156_160, 462),
}

# Seconds for each class of the shard: random numbers, their largest, and a sort. Found with a published
# figure.
_DRAW = 14e-9
# Passes over the logits that ArcFace takes in arcface_torch: acos and cos in place, of which autograd copies
# the inputs, the softmax by five ops, and all of it backward. The 32.1 GB counted for 125,000 classes
# (docs/labbook.md). CosFace takes neither acos nor cos.
_ARCFACE = HeadStyle(logits=52, rows=25, draw=_DRAW, scattered=True)
_COSFACE = _ARCFACE._replace(logits=21)
# PLSC 2.2 has one kernel for margin, softmax and loss, and all of the head in 16 bits.
_FUSED = HeadStyle(logits=10, rows=20, itemsize=2)


class Program(NamedTuple):
    """What a program does otherwise than plsc."""

    head: HeadStyle
    kernels: int
    """Launches for each tensor of the network. PyTorch 1.9 sums, unscales, clips and updates each by itself;
    its number was found with a published figure, the others' is that of plsc's and a few more."""
    rows: float = 8.8
    """Arrays as large as the step's rows that are there at the peak. Found with published figures."""
    logits: float = 10.0
    """Arrays as large as the logits that are there at the peak; read in the code."""
    half_head: bool = False
    """Whether all of the head is in 16 bits where the network is."""
    state: int = 16
    """Bytes of a number of the network: value, gradient, momentum and the buffer of its sum."""


PROGRAMS = {
    "arcface_torch, ArcFace": Program(_ARCFACE, kernels=13),
    "arcface_torch, CosFace": Program(_COSFACE, kernels=13, logits=5.0),
    "Partial FC, MXNet": Program(_COSFACE, kernels=6),
    "OneFlow": Program(_ARCFACE, kernels=6),
    "PLSC 2.2, dynamic": Program(_FUSED, kernels=6, rows=4.0, logits=3.0, half_head=True, state=10),
    "PLSC 2.2, static": Program(_FUSED, kernels=6, rows=4.0, logits=3.0, half_head=True, state=10),
    "PLSC 0.x": Program(_ARCFACE._replace(scattered=False), kernels=6),
}


class Run(NamedTuple):
    """A run whose speed or memory was published."""

    program: str
    network: str
    batch: int
    """Images of a GPU."""
    classes: int
    rate: float
    dtype: str
    """Of the network: float32, tf32 or float16."""
    sharded: bool = True


def images_per_second(run: Run, cluster: Cluster) -> float:
    """Predict the images/s of all GPUs."""
    return run.batch * cluster.ranks / sum(seconds(_work(run, cluster), cluster).values())


def memory(run: Run, cluster: Cluster) -> float:
    """Predict the bytes of a GPU."""
    program, network = PROGRAMS[run.program], NETWORKS[run.network]
    fixed = CONTEXT + program.state * network.parameters + run.batch * _kept(run)
    return fixed + _shard(run, cluster) * _class_bytes(run, cluster)


def largest_classes(run: Run, cluster: Cluster, limit: float) -> float:
    """Predict the classes with which a GPU takes `limit` bytes."""
    free = limit - memory(run._replace(classes=0), cluster)
    return free / _class_bytes(run, cluster) * (cluster.ranks if run.sharded else 1)


def _work(run: Run, cluster: Cluster) -> Work:
    program, network = PROGRAMS[run.program], NETWORKS[run.network]
    half = run.dtype == "float16"
    head_dtype = "float16" if half and program.half_head else "float32"
    if head_dtype == "float32" and run.dtype != "float32" and "tf32" in cluster.device.flops:
        head_dtype = "tf32"
    shard = _shard(run, cluster)
    return Work(
        samples=run.batch,
        macs=network.macs,
        kept=_kept(run),
        passes=CONVOLUTIONAL.passes,
        parameters=network.parameters,
        kernels=program.kernels * network.tensors,
        dtype=run.dtype,
        classes=int(run.rate * shard),
        shard=shard,
        width=WIDTH,
        head_dtype=head_dtype,
        head=program.head,
        sharded=run.sharded,
    )


def _kept(run: Run) -> float:
    return NETWORKS[run.network].kept / (2 if run.dtype == "float16" else 1)


def _shard(run: Run, cluster: Cluster) -> int:
    return -(-run.classes // cluster.ranks) if run.sharded else run.classes


def _class_bytes(run: Run, cluster: Cluster) -> float:
    """Return the bytes of a GPU for each class of its shard.

    With sampling all centres and their momentum are there besides what a step has of its classes; without,
    they are among it.
    """
    program = PROGRAMS[run.program]
    itemsize = 2 if run.dtype == "float16" and program.half_head else 4
    samples = run.batch * (cluster.ranks if run.sharded else 1)
    stored = 2 * WIDTH if run.rate < 1 else 0
    return itemsize * (stored + run.rate * (program.rows * WIDTH + program.logits * samples))
