"""Predict memory, time and disk space of a run, how many classes fit, and whether sampling pays.

    plsc plan -c configs/ --classes 1000000 --ranks 2 --rate 0.1

Memory of the head and disk space are computed; the backbone's memory and all times come from about ten
seconds of measurement in new processes on this machine (calibration.py), extrapolated along straight lines.
The output names what is not measured. For the accuracy see docs/labbook.md and `python -m benchmarks plan`.

    plsc plan -c configs/ --device a100 --nodes 8 --network 200

plans for GPUs that are elsewhere and measures nothing (on_paper.py, docs/planning.md).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import numpy as np

from plsc.apps.plan.calibration import Case, calibrate, work
from plsc.apps.plan.paper import on_paper
from plsc.apps.plan.paper.devices import DEVICES
from plsc.apps.plan.sizes import (
    GB,
    along,
    backbone_bytes,
    bank_bytes_of,
    disk_free,
    disk_needs,
    fits_disk,
    gigabytes,
    head_bytes,
    most,
    on_this_machine,
    parts_bytes,
)
from plsc.backbones.config import ModelCfg
from plsc.config import STAND_IN, Config, add_arguments, load
from plsc.data.build import build_dataset
from plsc.data.dataset import Dataset
from plsc.distributed import environment
from plsc.errors import UserError, writing
from plsc.training.stand_in import check_data, stand_in
from plsc.utils.files import check_parent
from plsc.utils.logging import warn
from plsc.utils.memory import available_bytes
from plsc.utils.text import counted, table

RATES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.01)
PAYS = 0.1  # share of a step's time that a lower rate must save to be proposed
_SECONDS = 10.0  # of calibration
_UNWRITTEN = 0.2  # share of the page cache that may wait to be written, Linux's vm.dirty_ratio


class Disk(NamedTuple):
    """Shares of the rows of a step that the disk reads and writes; the others are in the page cache."""

    reads: float = 0.0
    writes: float = 0.0


CACHED = Disk()


def head_seconds(case: Case, measured: dict, rate: float, disk: Disk = CACHED) -> float:
    """Predict the seconds of the head in a step.

    With a bank on disk a step waits for reading; writing goes on in parallel, and is waited for if it takes
    longer than the rest.
    """
    points = measured["head"]["full" if rate == 1 else "sampled"]
    cached, *others = (
        along([(point[0], point[place]) for point in points], case.selected(rate))
        for place in range(1, len(points[0]))
    )
    if not others:
        return cached
    read, written = others
    return disk.reads * (read - cached) + max(cached, disk.writes * written)


def disk_of(case: Case, memory: float, used: int) -> Disk:
    """Predict the work of the disk if the process uses `used` of `memory` bytes, the page cache the
    others."""
    if case.cfg.Head.bank != "disk":
        return CACHED
    size = max(1, bank_bytes_of(case, case.shard))
    cache = max(0.0, memory - used)
    return Disk(max(0.0, 1 - cache / size), max(0.0, 1 - _UNWRITTEN * cache / size))


# ---- the plan and its text


def rank_bytes(
    case: Case, measured: dict, rate: float, gpu: bool = False, whole_budget: bool = False
) -> dict[str, int]:
    """Compute the bytes of a rank by part; of a GPU those that a plan on paper has. whole_budget: as of
    sizes.head_bytes."""
    if gpu:
        return on_paper.gpu_bytes(case, measured, rate, whole_budget)
    paddle = {"Paddle": measured["base"]} if measured["head"] else {}
    network = backbone_bytes(case, measured)
    head = head_bytes(case, rate, whole_budget)
    return {**paddle, **network, **head, **parts_bytes(case, measured, rate, whole_budget)}


def plan(case: Case, measured: dict, memory: float, free: dict, gpu: bool = False) -> dict:
    """Make the plan from a calibration, without times if it has none.

    memory: bytes for each rank. free: the result of `disk_free`. gpu: each rank has one.
    """
    rate = case.cfg.Head.sample_rate
    timed = bool(measured["head"])
    backbone = (
        case.accumulate * along([point[:2] for point in measured["backbone"]], case.batch)
        if timed and measured["backbone"]
        else None
    )
    passing = measured.get("passing")
    passing_points = passing["seconds"] if timed and passing else []
    rates = sorted({*(RATES if case.cfg.Head.sharded else (1.0,)), rate}, reverse=True)
    totals = {each: sum(rank_bytes(case, measured, each, gpu).values()) for each in rates}
    disks = {each: disk_of(case, memory, totals[each]) for each in rates}
    seconds = {each: head_seconds(case, measured, each, disks[each]) if timed else None for each in rates}
    sizes = measured["parameters"], measured["frozen"]
    needs = disk_needs(case, *sizes)

    def fits(more: Case) -> bool:
        return sum(rank_bytes(more, measured, rate, gpu, whole_budget=True).values()) <= memory

    return {
        "classes": case.classes,
        "ranks": case.ranks,
        "batch": case.batch,
        "accumulate": case.accumulate,
        "rate": rate,
        "bank": [case.cfg.Head.bank, case.cfg.Head.bank_dtype],
        "amp": case.cfg.Global.amp.dtype if case.cfg.Global.amp else None,
        "gpu": gpu,
        "bytes": rank_bytes(case, measured, rate, gpu),
        "memory": memory,
        "machine_bytes": on_paper.machine_bytes(case, 1) if gpu else 0,
        "head_seconds": seconds[rate],
        "head_seconds_cached": head_seconds(case, measured, rate) if timed else None,
        "from_disk": disks[rate]._asdict(),
        "backbone_seconds": backbone,
        "passing_seconds": case.accumulate * along(passing_points, case.batch) if passing_points else None,
        "compatible": case.cfg.Global.compatible_with is not None,
        "largest_classes": most(case, fits),
        "disk": {**needs, "free": free, "fits": fits_disk(needs, free)},
        "largest_classes_on_disk": most(case, lambda more: fits_disk(disk_needs(more, *sizes), free)),
        "rates": [
            {
                "rate": each,
                "selected": case.selected(each),
                "head_seconds": seconds[each],
                "bytes": totals[each],
            }
            for each in rates
        ],
        "calibration": measured,
    }


def verdict(planned: dict) -> str:
    """Say in a sentence whether a lower rate pays."""
    present = next(row for row in planned["rates"] if row["rate"] == planned["rate"])
    lower = [row for row in planned["rates"] if row["rate"] < planned["rate"]]
    whole = (
        present["head_seconds"] + (planned["backbone_seconds"] or 0.0) + (planned["passing_seconds"] or 0.0)
    )
    for row in lower:  # the highest rate with most of the possible saving
        saved = (present["head_seconds"] - row["head_seconds"]) / whole
        best = (present["head_seconds"] - min(each["head_seconds"] for each in lower)) / whole
        if saved >= PAYS and saved >= 0.8 * best:
            return f"a rate of {row['rate']:g} saves {saved:.0%} of a step"
    return f"a lower rate does not pay: it saves less than {PAYS:.0%} of a step"


def show(planned: dict) -> str:
    timed = planned["head_seconds"] is not None
    bank, dtype = planned["bank"]
    total = sum(planned["bytes"].values())
    rows = [[name, size / GB] for name, size in planned["bytes"].items()] + [["all", total / GB]]
    rates = [
        [row["rate"], row["selected"], *([1e3 * row["head_seconds"]] if timed else []), row["bytes"] / GB]
        for row in planned["rates"]
    ]
    times = f"{planned['accumulate']} x " if planned["accumulate"] > 1 else ""
    headers = ["rate", "classes in a step", *(["head, ms"] if timed else []), "all, GB"]
    sizes = [row["bytes"] for row in planned["rates"]]
    more = "a lower rate takes more memory where the exponentials of its logits fit Head.logits_budget_mb: they are kept for the backward pass"
    fits = f"memory: {gigabytes(total)} of {gigabytes(planned['memory'])} for each rank"
    if planned["machine_bytes"]:
        fits += f", and {gigabytes(planned['machine_bytes'])} of the machine's for its bank"
    lines = [
        (
            f"{planned['classes']:,} classes on {counted(planned['ranks'], 'rank')}, {times}{planned['batch']} samples each, rate {planned['rate']:g}, "
            f"bank {bank}, {dtype}"
        ),
        "",
        table(rows, ["of a rank", "GB"]),
        "",
        table(rates, headers),
        *([more] if sizes != sorted(sizes, reverse=True) else []),
        "",
        f"{fits}; up to {planned['largest_classes']:,} classes fit",
        format_disk(planned),
        *(format_times(planned) if timed else [format_counted(planned)]),
    ]
    if total > planned["memory"]:
        lines.append("it does NOT fit the memory: more ranks, a lower embedding size, or another Head.bank")
    if not planned["disk"]["fits"]:
        lines.append(
            "it does NOT fit the disk: a lower Checkpoint.keep, Head.bank_dtype=bfloat16, or another folder"
        )
    return "\n".join(lines)


def format_counted(planned: dict) -> str:
    """Describe what a plan without measurement leaves out."""
    start = "nothing is measured (--seconds 0): the bytes are those of tensors, activations what autograd keeps of a forward pass"
    if planned["gpu"]:
        return f"{start}{_with_amp(planned)}, CUDA and libraries as published figures have them (docs/planning.md); not in them: data"
    return (
        f"{start} in {planned['calibration']['dtype']}; not in them: Paddle itself ({gigabytes(planned['calibration']['base'])} of this process), data, and freed memory that "
        "malloc keeps (docs/labbook.md: mostly 8 to 16 %)"
    )


def _with_amp(planned: dict) -> str:
    """Say in which precision the activations of a GPU are planned."""
    return f" with Global.amp {planned['amp']}" if planned["amp"] else " in float32"


def format_times(planned: dict) -> list[str]:
    """Describe the times of a step and how they were measured."""
    measured = planned["calibration"]
    bank, _ = planned["bank"]
    furthest = max(point[0] for points in measured["head"].values() for point in points)
    lines = [f"time of a step: head {1e3 * planned['head_seconds']:.1f} ms"]
    if planned["compatible"]:
        lines[-1] += ", that of compatible_with included"
    if planned["passing_seconds"] is not None:
        lines[-1] += f", network of another run {1e3 * planned['passing_seconds']:.1f} ms"
    if planned["backbone_seconds"] is not None:
        lines[-1] += (
            f", backbone {1e3 * planned['backbone_seconds']:.1f} ms, without optimizer and the ranks' waiting"
        )
    if bank == "disk":
        shares, cached = planned["from_disk"], 1e3 * planned["head_seconds_cached"]
        lines.append(
            f"of a step's rows the disk reads {shares['reads']:.0%} and writes {shares['writes']:.0%}, the page cache has the others "
            f"(all of them: {cached:.1f} ms); what the head waits for here goes on while the backbone runs"
        )
    return [*lines, verdict(planned), format_calibration(planned, furthest)]


def format_calibration(planned: dict, furthest: int) -> str:
    """Describe the calibration: machine, processes, sizes and scatter."""
    measured, ranks = planned["calibration"], planned["ranks"]
    gpu = measured.get("gpu")
    if measured["ranks"] == ranks:
        who = f"all {ranks} ranks" if ranks > 1 else "the one rank"
    else:
        few = "" if gpu else ", of which this machine has not processors enough"
        who = (
            f"{counted(measured['ranks'], 'process', 'processes')} in place of each of the {ranks} ranks{few}; what ranks send each "
            "other is not in them"
        )
    sizes = f"measured up to {furthest:,} classes in a step"
    if measured["backbone"]:
        sizes += f" and {measured['backbone'][-1][0]} images"
    where = f"this machine's processor ({processor_name()}, {measured['threads']} threads a rank), not of a GPU or another machine"
    if gpu:
        where = f"this machine's GPU ({gpu['name']}), and so is the memory{_with_amp(planned)}, but for CUDA and libraries"
    return f"times are of {where}: {who}; {sizes}, beyond that a straight line; repeated measurements differ by {measured.get('scatter', 0):.0%} or so"


def processor_name() -> str:
    """Return the system's name of the processor (Linux), else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


_MOST = 10**15  # classes; int() of 1e999999999 would take hours


def whole_number(text: str) -> int:
    """Read 1000, 100k, 10M, 1.5e6 or 1,000,000."""
    units = {"k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}
    digits, factor = text.replace(",", "").replace("_", "").lower(), 1
    if digits[-1:] in units:
        digits, factor = digits[:-1], units[digits[-1]]
    try:
        number = Decimal(digits) * factor
    except ArithmeticError:  # no number, or one with an exponent of millions
        number = Decimal("NaN")
    if not number.is_finite() or abs(number) >= _MOST or number != int(number):
        raise argparse.ArgumentTypeError(
            f"must be a whole number below {_MOST:.0e}, such as 100000, 100k, 10M or 1.5e6 (got '{text}')"
        )
    return int(number)


def format_disk(planned: dict) -> str:
    needs = planned["disk"]
    free = needs["free"]
    parts = [f"at most {needs['checkpoints']} checkpoints of {gigabytes(needs['checkpoint'])}"]
    if not free["one"]:
        parts[0] += f" of {gigabytes(free['checkpoints'])} free"
    if needs["bank"]:
        parts.append(
            f"bank {gigabytes(needs['bank'])}"
            + ("" if free["one"] else f" of {gigabytes(free['bank'])} free")
        )
    whole = f", of {gigabytes(free['checkpoints'])} free" if free["one"] else ""
    return f"disk: {', '.join(parts)}{whole}; up to {planned['largest_classes_on_disk']:,} classes fit"


def config_of(args: argparse.Namespace) -> Config:
    keys = {
        "Head.sample_rate": args.rate,
        "Head.bank": args.bank,
        "Head.bank_dtype": args.bank_dtype,
        "Head.compute_dtype": args.dtype,
        "DataLoader.Train.batch_size": args.batch,
    }
    given = [f"{key}={value}" for key, value in keys.items() if value is not None]
    cfg = load(args.config, [*args.override, *given])
    return stand_in(cfg) if args.stand_in else cfg


def parser() -> argparse.ArgumentParser:
    """Build the parser of `plsc plan`."""
    options = argparse.ArgumentParser("plsc plan", description=__doc__.splitlines()[0])
    add_arguments(options, device=False)
    options.add_argument("--stand-in", action="store_true", help=STAND_IN)
    options.add_argument(
        "--classes", type=whole_number, help="such as 250000, 100k, 10M or 1.5e6; default: what the data has"
    )
    options.add_argument(
        "--ranks",
        type=whole_number,
        help="processes that train, on all machines; default: what DataLoader.Train.global_batch takes, else 1",
    )
    options.add_argument("--batch", type=whole_number, help="DataLoader.Train.batch_size, samples of a rank")
    options.add_argument("--rate", type=float, help="Head.sample_rate")
    options.add_argument("--bank", help="Head.bank")
    options.add_argument("--bank-dtype", help="Head.bank_dtype")
    options.add_argument("--dtype", help="Head.compute_dtype")
    options.add_argument(
        "--memory", type=float, help="GB for each rank; default: what this machine has free, shared out"
    )
    options.add_argument(
        "--disk", type=float, help="GB for bank and checkpoints together; default: what is free where they go"
    )
    options.add_argument(
        "--seconds",
        type=float,
        help="of calibration, about; default: 10; 0 plans memory and disk only",
    )
    options.add_argument(
        "--device",
        choices=["cpu", "gpu", *DEVICES],
        default="cpu",
        help="what to calibrate on and plan for; cpu: the processor, whatever Global.device says; the name of a GPU: planned on paper",
    )
    on_paper.add_arguments(options)
    options.add_argument("--json", type=Path, help="also write the numbers there")
    options.add_argument("--work", nargs=2, help=argparse.SUPPRESS)  # the calibration in new processes
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run `plsc plan ...`."""
    args = parser().parse_args(argv)
    cfg = config_of(args)
    if args.work:
        measured = work(cfg, json.loads(args.work[0]))
        if environment.rank_from_env() == 0:
            Path(args.work[1]).write_text(json.dumps(measured))
        return 0
    refuse(args)
    check_data(cfg)
    dataset = build_dataset(cfg.DataLoader, cfg.Global.seed, cfg.place)
    shape = dataset.preprocessing.shape
    if args.device != "cpu":
        os.environ["PLSC_KERNELS"] = "0"  # the memory of a head without kernels, in this process, too
    if args.device in DEVICES:
        planned, text = plan_on_paper(args, cfg, dataset)
    else:
        if args.device == "cpu":
            warn_of_cpu(cfg, args.ranks or cfg.DataLoader.Train.planned_ranks)
        planned, text = plan_here(args, cfg, dataset)
    if args.config is None:
        print(
            f"no config given (-c): planned are the defaults and what -o changes of them, the network {cfg.Model.name} on images of "
            f"{' x '.join(map(str, shape))} from {' and '.join(section.name for section in cfg.DataLoader.Train.sets)}"
        )
    print(text)
    if dataset.ranges and len(dataset.ranges) > 1:
        print(
            f"classes lie in {len(dataset.ranges)} ranges with a softmax each (head: own): memory is as planned; on a CPU the head takes "
            "less time, as each range is computed for its own samples only, elsewhere up to half more, for a mask on the logits"
        )
    if args.json:
        with writing(args.json):
            args.json.write_text(json.dumps(planned, indent=1) + "\n")
    return 0


def refuse(args: argparse.Namespace) -> None:
    """Raise UserError for options out of range, or that make no sense together."""
    for key in ("classes", "ranks"):
        if getattr(args, key) is not None and getattr(args, key) < 1:
            raise UserError(f"--{key}: must be 1 or more (got {getattr(args, key)})")
    for key in ("memory", "disk"):
        if getattr(args, key) is not None and not 0 < getattr(args, key) < math.inf:
            raise UserError(f"--{key}: must be more than 0, and finite (got {getattr(args, key):g})")
    if args.seconds is not None and not 0 <= args.seconds < math.inf:
        raise UserError(f"--seconds: must be 0 or more, and finite (got {args.seconds:g})")
    for path in filter(None, (args.json, args.plot)):
        check_parent(path)
    on_paper.refuse(args)
    if args.device == "gpu" and args.seconds == 0 and not args.memory:
        raise UserError("--device gpu: with --seconds 0 no GPU is looked at; give its memory by --memory")


def warn_of_cpu(cfg: Config, ranks: int) -> None:
    """Warn where what is planned for this machine's processor seems to be meant for GPUs."""
    processors = os.cpu_count() or 1
    amp = "Global.amp is float16" if cfg.Global.amp and cfg.Global.amp.dtype == "float16" else ""
    many = f"{ranks} ranks on {processors} processors" if ranks > processors else ""
    if reasons := " and ".join(filter(None, (amp, many))):
        warn(
            f"--device cpu: this plans for this machine's processor, where memory and time are others than on a GPU ({reasons}); for GPUs "
            f"give --device gpu, or the name of one: {', '.join(DEVICES)}"
        )


def plan_here(args: argparse.Namespace, cfg: Config, dataset: Dataset) -> tuple[dict, str]:
    """Plan for a machine like this one -> the numbers and their text."""
    ranks = args.ranks or cfg.DataLoader.Train.planned_ranks
    case = Case.on(cfg, args.classes or dataset.num_classes, ranks)
    free = dict.fromkeys(("bank", "checkpoints"), (args.disk or 0) * GB)
    free = {**free, "one": True} if args.disk else disk_free(cfg)
    seconds = _SECONDS if args.seconds is None else args.seconds
    if seconds:
        shape = dataset.preprocessing.shape
        measured = calibrate(case, seconds, shape, None, args.device, _passing(cfg, dataset))
    else:
        measured = _counted(cfg, dataset)
    measured["sample_bytes"] = _sample_bytes(dataset)
    planned = plan(case, measured, _memory(args, measured, ranks), free, args.device == "gpu")
    return planned, show(planned)


def plan_on_paper(args: argparse.Namespace, cfg: Config, dataset: Dataset) -> tuple[dict, str]:
    """Plan for GPUs that are elsewhere -> the numbers and their text; draw them if asked."""
    on_paper.refuse_for(args, cfg)
    ranks = on_paper.cluster_of(args).ranks
    cfg.check_ranks(ranks)
    case = Case.on(cfg, args.classes or dataset.num_classes, ranks)
    measured = {**_counted(cfg, dataset), "sample_bytes": _sample_bytes(dataset)}
    planned = on_paper.plan(case, measured, args.images or len(dataset), args)
    if args.plot:
        from plsc.apps.plan.paper.picture import draw  # here: matplotlib takes a second

        with writing(args.plot):
            args.plot.write_bytes(draw(planned))
    return planned, on_paper.show(planned)


def _counted(cfg: Config, dataset: Dataset) -> dict:
    """Count the network of a config, in this process."""
    environment.prepare(cfg.Global.threads)
    from plsc.apps.plan import activations

    return activations.counted(cfg, dataset.preprocessing.shape, _passing(cfg, dataset))


def _passing(cfg: Config, dataset: Dataset) -> tuple[ModelCfg, bool] | None:
    """Open the run whose network embeds the samples of a step, too: its config, and whether it does; None
    without one. UserError if it does not fit the run."""
    environment.prepare(cfg.Global.threads)
    from plsc.training.build import passing_network

    return passing_network(cfg, dataset)


def _sample_bytes(dataset: Dataset) -> int:
    """Return the bytes of a sample on its way to the device."""
    pixel = 1 if dataset.preprocessing.dtype == "uint8" else 4
    return pixel * int(np.prod(dataset.preprocessing.shape))


def _memory(args: argparse.Namespace, measured: dict, ranks: int) -> float:
    """Return the bytes for each rank: as given, or of the GPU, or a share of what the machine has free."""
    if args.memory:
        return args.memory * GB
    if args.device == "cpu":
        return available_bytes() / on_this_machine(ranks)
    return measured["gpu"]["bytes"]
