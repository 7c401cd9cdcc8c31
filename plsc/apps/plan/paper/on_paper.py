"""Plan a run on GPUs that are elsewhere, from their data sheets: `plsc plan --device a100 --nodes 8 --gpus 8
--network 200`.

Memory is that of `plsc plan --device gpu --seconds 0`; times are those of cluster.py.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from plsc.apps.plan.calibration import Case
from plsc.apps.plan.paper import cluster as model
from plsc.apps.plan.paper.cluster import Cluster, Work
from plsc.apps.plan.paper.devices import DEVICES, Device
from plsc.apps.plan.sizes import (
    GB,
    OLD_CLASSES,
    backbone_bytes,
    bank_bytes_of,
    disk_needs,
    gigabytes,
    head_bytes,
    most,
    of_old_classes,
    parts_bytes,
)
from plsc.config import Config
from plsc.config.run import head_dtype
from plsc.errors import UserError
from plsc.utils.text import duration, table

# CUDA's context, NCCL's buffers, workspaces of cuDNN and freed blocks, as PyTorch programs of 2021 had them;
# found with the memory of published figures (programs.py).
CONTEXT = 1886 * 2**20
# Kernels of a step beside those of forward and backward.
KERNELS = 104


class Kind(NamedTuple):
    """What networks of a kind have alike; counted (`python -m benchmarks step --count`) but for
    `amp_kept`."""

    passes: float
    """Bytes moved forward and backward, in multiples of what autograd keeps."""
    kernels: float
    """Of forward and backward, for each trained tensor."""
    amp_kept: float
    """With Global.amp, of what autograd keeps in float32."""


# 6.2 for IResNet50 and ResNet50, 6.3 for IResNet100, 5.5 for MobileFaceNet. Of the five tensors that autograd
# keeps of a block of IResNet one, the input of PReLU, stays float32.
CONVOLUTIONAL = Kind(passes=6.2, kernels=1.6, amp_kept=0.6)
# 14.8 for FaceViT_tiny, 13.8 for FaceViT_small, 13.7 for FaceViT_base. Norms, biases and tokens stay float32:
# an estimate.
TRANSFORMER = Kind(passes=14.0, kernels=5.8, amp_kept=0.8)
# Of a bank that is not on the device, beside the moments.
_ON_HOST = ("centres", "buffers", "rows in transit")
_OPTIONS = ("nodes", "gpus", "network", "price", "images", "loader", "machine_memory", "plot")
_MOST_RANKS = 100_000  # more take long to list, and nobody has them
_HOUR = 3600.0  # seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a plan on paper."""
    group = parser.add_argument_group("on paper, with a GPU of the table as --device")
    group.add_argument("--nodes", type=int, help="machines; default: 1")
    group.add_argument("--gpus", type=int, help="of each machine; default: 8")
    group.add_argument("--network", type=float, help="Gbit/s of each machine's network, in one direction")
    group.add_argument("--images", type=int, help="of an epoch; default: those of the config's data")
    group.add_argument("--loader", type=float, help="images/s that a machine's processors prepare")
    group.add_argument("--price", type=float, help="of a GPU for an hour, in any currency")
    group.add_argument("--machine-memory", type=float, help="GB of each machine, for Head.bank=host")
    group.add_argument("--plot", type=Path, help="draw time and scaling there, as PNG")


def refuse(args: argparse.Namespace) -> None:
    """Raise UserError for options that make no sense together."""
    for name in _OPTIONS:
        value = getattr(args, name)
        option = "--" + name.replace("_", "-")
        if value is not None and args.device not in DEVICES:
            raise UserError(f"{option}: plans on paper; name a GPU with it, --device {' or '.join(DEVICES)}")
        if isinstance(value, (int, float)) and not 0 < value < math.inf:
            raise UserError(f"{option}: must be more than 0 (got {value:g})")
    if args.device not in DEVICES:
        return
    without_meaning = {
        "ranks": "they are --nodes x --gpus",
        "memory": "it is that of the table",
        "seconds": "nothing is measured there",
        "disk": "a machine's is not looked at",
    }
    for name, why in without_meaning.items():
        if getattr(args, name) is not None:
            raise UserError(f"--{name}: has no meaning with --device {args.device}: {why}")
    cluster = cluster_of(args)
    if cluster.ranks > _MOST_RANKS:
        raise UserError(f"--nodes x --gpus: must be at most {_MOST_RANKS:,} (got {cluster.ranks:,})")
    if cluster.nodes > 1 and args.network is None:
        raise UserError(
            "--network: give the Gbit/s of each machine's network, such as 100 (--nodes is above 1)"
        )
    if cluster.nodes == 1 and args.network is not None:
        raise UserError("--network: one machine sends nothing over it; give --nodes too, or leave it out")


def refuse_for(args: argparse.Namespace, cfg: Config) -> None:
    """Raise UserError for options that make no sense with a config."""
    if args.machine_memory and cfg.Head.bank != "host":
        raise UserError(f"--machine-memory: has a meaning with Head.bank=host only (got {cfg.Head.bank})")


def cluster_of(args: argparse.Namespace) -> Cluster:
    """Build the cluster that the options describe."""
    network = args.network * 1e9 if args.network else math.inf
    return Cluster(DEVICES[args.device], args.nodes or 1, args.gpus or 8, network)


def kind_of(measured: dict) -> Kind:
    """Return the kind of a network. measured: the result of activations.counted."""
    return TRANSFORMER if measured["attention"] else CONVOLUTIONAL


# ---- memory


def gpu_bytes(case: Case, measured: dict, rate: float, whole_budget: bool = False) -> dict[str, int]:
    """Compute the bytes of a GPU by part. whole_budget: as of sizes.head_bytes."""
    cfg = case.cfg
    network = backbone_bytes(case, measured)
    if cfg.Global.amp and "activations" in network:
        network["activations"] = round(kind_of(measured).amp_kept * network["activations"])
    head = head_bytes(case, rate, whole_budget)
    return {
        "CUDA and libraries": CONTEXT,
        **network,
        **{name: size for name, size in head.items() if name not in _host(case)},
        **parts_bytes(case, measured, rate, whole_budget),
    }


def machine_bytes(case: Case, gpus: int) -> int:
    """Compute the bytes of a machine's memory that its ranks' banks take."""
    head = head_bytes(case, case.cfg.Head.sample_rate)
    return gpus * sum(head.get(name, 0) for name in _host(case))


def _host(case: Case) -> tuple[str, ...]:
    from plsc.training.build_head import build_rule

    return () if case.cfg.Head.bank == "device" else (*_ON_HOST, *build_rule(case.cfg.Optimizer).moments)


def largest_classes(case: Case, measured: dict, cluster: Cluster, machine_memory: float) -> int:
    """Find the most classes that fit the GPUs and, with Head.bank=host, the machines' memory."""

    def fits(more: Case) -> bool:
        gpu = sum(gpu_bytes(more, measured, more.cfg.Head.sample_rate, whole_budget=True).values())
        return gpu <= cluster.device.memory and machine_bytes(more, cluster.gpus) <= machine_memory

    return most(case, fits)


# ---- time


def dtype_of(cfg: Config, device: Device, wanted: str) -> str:
    """Return the dtype in which a GPU computes products: TensorFloat-32 for float32 where it has it."""
    if wanted == "float32":
        return "tf32" if cfg.Global.tf32 and "tf32" in device.flops else "float32"
    if wanted not in device.flops:
        raise UserError(f"--device {device.name}: computes no {wanted}; it has {', '.join(device.flops)}")
    return wanted


def work_of(case: Case, measured: dict, device: Device) -> Work:
    """Count what a rank does in a step. measured: the result of activations.counted."""
    from plsc.heads.blocks import plan_blocks  # here: it imports Paddle
    from plsc.training.build_head import build_rule, logits_budget

    cfg = case.cfg
    amp = cfg.Global.amp
    kind = kind_of(measured)
    forwards = 1 + (case.accumulate > 1) + bool(cfg.Model.recompute)
    classes = case.selected(cfg.Head.sample_rate)
    width = cfg.Model.embedding_size * cfg.Head.sub_centres
    rounded = head_dtype(cfg.Head, amp)
    _, kept = plan_blocks(
        case.samples, classes, width, cfg.Head.sub_centres, logits_budget(cfg.Head), rounded
    )
    row = (
        (1 + len(build_rule(cfg.Optimizer).moments)) * (2 if cfg.Head.bank_dtype == "bfloat16" else 4) * width
    )
    moved = 2 * row * classes * (cfg.Head.bank != "device")
    passed = 3 * 4 * width * classes * (cfg.Head.bank != "device")  # rows twice, and their gradient
    return Work(
        samples=case.batch * case.accumulate,
        macs=measured["macs"],
        kept=measured["made"] * (kind.amp_kept if amp else 1),
        passes=kind.passes,
        parameters=measured["parameters"],
        kernels=KERNELS + kind.kernels * measured["tensors"] * case.accumulate * (1 + forwards) / 2,
        dtype=dtype_of(cfg, device, amp.dtype if amp else "float32"),
        classes=classes,
        shard=case.shard,
        width=width,
        head_dtype=dtype_of(cfg, device, rounded),
        head=model.IN_BLOCKS if kept else model.RECOMPUTED,
        head_products=3 if kept else 4,
        sharded=cfg.Head.sharded,
        forwards=forwards,
        fetched=moved + passed,
        from_disk=moved * (cfg.Head.bank == "disk"),
    )


def passing_seconds(case: Case, work: Work, passing: dict, cluster: Cluster) -> float:
    """Predict the seconds in which the network of another run embeds a rank's samples. work: of the run.
    passing: the result of activations.count_passing."""
    kind = kind_of(passing)
    its = replace(
        work,
        macs=passing["macs"],
        kept=passing["made"],
        passes=kind.passes,
        kernels=kind.kernels * passing["tensors"] * case.accumulate / 2,  # of one pass of two
        dtype=dtype_of(case.cfg, cluster.device, "float32"),
    )
    parts = model.seconds(its, cluster)
    return parts["forward"] + parts["launches"]


def old_classes_seconds(case: Case, measured: dict, cluster: Cluster) -> float:
    """Predict the seconds of the head of Global.compatible_with."""
    work = work_of(of_old_classes(case), measured, cluster.device)
    rows = work.head.rows - model.UPDATE_ROWS
    drawn_rows = work.head.drawn_rows - model.UPDATE_DRAWN_ROWS
    frozen = replace(work, head=work.head._replace(rows=rows, drawn_rows=drawn_rows))
    parts = model.seconds(frozen, cluster)
    return parts["gather"] + parts["head"] + model.FROZEN_KERNELS * model.LAUNCH


def step_of(case: Case, measured: dict, cluster: Cluster, loader: float) -> dict[str, float]:
    """Predict the seconds of a step by part. loader: images/s that a machine prepares."""
    work = work_of(case, measured, cluster.device)
    parts = model.seconds(work, cluster)
    if (passing := measured["passing"]) and passing["held"]:
        parts["network of another run"] = passing_seconds(case, work, passing, cluster)
    if case.cfg.Global.compatible_with:
        parts[OLD_CLASSES] = old_classes_seconds(case, measured, cluster)
    loaded = case.batch * case.accumulate * cluster.gpus / loader
    return {**parts, "data": max(0.0, loaded - sum(parts.values()))}


def _sizes(nodes: int) -> Iterator[int]:
    """Yield 1, 2, 4, ... below `nodes`, and `nodes`."""
    size = 1
    while size < nodes:
        yield size
        size *= 2
    yield nodes


def scaling(case: Case, measured: dict, cluster: Cluster, loader: float) -> list[dict[str, Any]]:
    """Plan the same run on 1 machine to all of them, with the same batch of a rank unless the config keeps
    the global one."""
    rows = []
    for nodes in _sizes(cluster.nodes):
        part = Cluster(cluster.device, nodes, cluster.gpus, cluster.network)
        here = Case.on(case.cfg, case.classes, part.ranks)
        parts = step_of(here, measured, part, loader)
        step = sum(parts.values())
        speed = case.cfg.DataLoader.Train.global_batch_on(part.ranks) / step
        size = sum(gpu_bytes(here, measured, here.cfg.Head.sample_rate).values())
        rows.append(
            {
                "nodes": nodes,
                "ranks": part.ranks,
                "seconds": parts,
                "step_seconds": step,
                "images_per_second": speed,
                "bytes": size,
                "fits": size <= cluster.device.memory,
            }
        )
    for row in rows:
        alone = rows[0]["images_per_second"] / rows[0]["ranks"]
        row["efficiency"] = row["images_per_second"] / row["ranks"] / alone
    return rows


# ---- the plan and its text


def plan(case: Case, measured: dict, images: int, args: argparse.Namespace) -> dict[str, Any]:
    """Plan a case on the cluster of the options. measured: the result of activations.counted. images: of an
    epoch."""
    cfg = case.cfg
    cluster = cluster_of(args)
    rows = scaling(case, measured, cluster, args.loader or math.inf)
    epoch = images / rows[-1]["images_per_second"]
    machine_memory = args.machine_memory * 2**30 if args.machine_memory else math.inf
    return {
        "device": cluster.device.name,
        "source": cluster.device.source,
        "nodes": cluster.nodes,
        "gpus": cluster.gpus,
        "loader": args.loader,
        "num_workers": cfg.DataLoader.Train.num_workers,
        "network": None if math.isinf(cluster.network) else cluster.network,
        "classes": case.classes,
        "batch": case.batch,
        "accumulate": case.accumulate,
        "rate": cfg.Head.sample_rate,
        "bank": [cfg.Head.bank, cfg.Head.bank_dtype],
        "amp": cfg.Global.amp.dtype if cfg.Global.amp else None,
        "bytes": gpu_bytes(case, measured, cfg.Head.sample_rate),
        "memory": cluster.device.memory,
        "machine_bytes": machine_bytes(case, cluster.gpus),
        "machine_disk": bank_bytes_of(case, case.shard) * cluster.gpus * (cfg.Head.bank == "disk"),
        "checkpoint_bytes": disk_needs(case, measured["parameters"], measured["frozen"])["checkpoint"],
        "largest_classes": largest_classes(case, measured, cluster, machine_memory),
        "scaling": rows,
        "epoch": {
            "images": images,
            "seconds": epoch,
            "cost": epoch / _HOUR * cluster.ranks * args.price if args.price else None,
        },
    }


def show(planned: dict[str, Any]) -> str:
    """Format a plan on paper as text."""
    whole = planned["scaling"][-1]
    times = f"{planned['accumulate']} x " if planned["accumulate"] > 1 else ""
    bank, dtype = planned["bank"]
    sizes = [[name, size / GB] for name, size in planned["bytes"].items()]
    parts = [
        [name, 1e3 * value, f"{value / whole['step_seconds']:.0%}"]
        for name, value in whole["seconds"].items()
    ]
    if not planned["loader"]:
        parts = [
            row if row[0] != "data" else ["data", None, "not modelled without --loader"] for row in parts
        ]
    rows = [
        [
            row["nodes"],
            row["ranks"],
            1e3 * row["step_seconds"],
            row["images_per_second"],
            f"{row['efficiency']:.0%}",
            row["bytes"] / GB,
            "yes" if row["fits"] else "NO",
        ]
        for row in planned["scaling"]
    ]
    lines = [
        (
            f"{planned['classes']:,} classes on {planned['nodes']} x {planned['gpus']} {planned['device']}, {times}{planned['batch']} samples each, "
            f"rate {planned['rate']:g}, bank {bank}, {dtype}, network in {planned['amp'] or 'float32'}"
        ),
        "",
        table([*sizes, ["all", whole["bytes"] / GB]], ["of a GPU's memory", "GB"]),
        "",
        table([*parts, ["step", 1e3 * whole["step_seconds"], "100%"]], ["of a step", "ms", "share"]),
        "",
        table(rows, ["machines", "GPUs", "step, ms", "images/s", "of the first's", "GB of a GPU", "fits"]),
        "",
        format_limits(planned),
        format_loading(planned),
        format_epoch(planned["epoch"]),
        (
            f"on paper: speeds are those of {planned['source']}, times efficiencies found from published figures, most of which it meets within "
            "25 % (docs/planning.md); nothing was measured, neither here nor of plsc on such a cluster"
        ),
    ]
    if not whole["fits"]:
        lines.append("it does NOT fit the GPUs: more of them, a lower batch, or another Head.bank")
    return "\n".join(lines)


def format_limits(planned: dict[str, Any]) -> str:
    """Say what fits, and what a machine and a checkpoint take."""
    used = sum(planned["bytes"].values())
    line = f"memory: {gigabytes(used)} of {gigabytes(planned['memory'])} of each GPU; up to {planned['largest_classes']:,} classes fit"
    if planned["machine_bytes"]:
        line += f"; of each machine {gigabytes(planned['machine_bytes'])} for the bank"
    if planned["machine_disk"]:
        line += f", and {gigabytes(planned['machine_disk'])} of its disk"
    return f"{line}; a checkpoint has {gigabytes(planned['checkpoint_bytes'])}"


def format_loading(planned: dict[str, Any]) -> str:
    """Say what the processes that prepare batches have to do."""
    whole = planned["scaling"][-1]
    of_rank = planned["num_workers"]
    loaders = planned["gpus"] * (of_rank or 1)
    of_worker = whole["images_per_second"] / planned["nodes"] / loaders
    kind = "processes" if of_rank else "threads"
    return (
        f"loading: each of a machine's {loaders} {kind} that prepare batches (DataLoader.Train.num_workers is {of_rank}) has to read and "
        f"decode {of_worker:,.0f} images/s; python -m benchmarks loader measures what it can"
    )


def format_epoch(epoch: dict[str, Any]) -> str:
    cost = "" if epoch["cost"] is None else f" and costs {epoch['cost']:,.2f} at the price given"
    return f"an epoch of {epoch['images']:,} images takes {duration(epoch['seconds'])}{cost}"
