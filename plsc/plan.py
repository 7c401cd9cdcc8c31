"""plsc-plan: what a run will take, before it is started: memory by part, time of the head, how many classes fit, whether sampling pays.

    plsc-plan -c configs/ --classes 1000000 --ranks 2 --rate 0.1

Memory of the head is computed; that of the backbone, and all times, come from about ten seconds of work in new processes on this machine: steps of
the head on growing numbers of classes, and of the backbone on growing batches, both continued along a straight line. What no calibration sees is
said. How good it is: docs/performance.md, `tools/benchmark.py plan`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from plsc import benchmark, environment, log
from plsc.config import Config, add_arguments, load
from plsc.errors import UserError
from plsc.sharding import split

RATES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.01)
MOST_ROWS = 200_000  # classes of a rank that the calibration makes: more take seconds to draw
SMALLEST = 1024  # of the growing numbers of classes
PAYS = 0.1  # share of a step's time that a lower rate must save
_STEPS = 3  # timed at each size, after one that is not; the median counts


@dataclass
class Case:
    """What is planned: a config's head with this many classes, ranks, and samples of a rank."""

    cfg: Config
    classes: int
    ranks: int
    batch: int

    @property
    def shard(self) -> int:
        """S of the largest shard."""
        spread = self.cfg.Head.name.startswith("dist_")
        return split(self.classes, self.ranks)[0][1] if spread else self.classes

    def selected(self, rate: float) -> int:
        """K, about: positives that were not drawn come on top."""
        samples = self.batch * self.ranks
        drawn = round(rate * self.shard)
        return min(self.shard, drawn + round(samples * (1 - rate) * self.shard / self.classes))

    @property
    def samples(self) -> int:
        """N that a rank judges."""
        return self.batch * (self.ranks if self.cfg.Head.name.startswith("dist_") else 1)


# ---- the calibration, in new processes


def calibrate(
    case: Case, seconds: float, image_shape: tuple[int, int, int] | None, threads: int | None
) -> dict:
    """What this machine takes, measured in new processes: as many as `case` has ranks, if there are processors for them.

    Returns {"head": {"full" or "sampled": [[K, seconds], ...]}, "backbone": [[samples, seconds, bytes], ...] (with
    `image_shape`), "parameters": of the backbone, "base": bytes of Paddle itself, "ranks": processes that took part, "threads": of each}.
    """
    processors = os.cpu_count() or 1
    ranks = case.ranks if case.ranks <= processors else 1
    # None: as in training, the processors shared out, or what the user's OMP_NUM_THREADS says.
    threads = threads or case.cfg.Global.threads or (None if ranks == case.ranks else 1)
    with tempfile.TemporaryDirectory() as folder:
        config, found = Path(folder, "config.yaml"), Path(folder, "found.json")
        config.write_text(case.cfg.to_yaml())
        asked = {
            "classes": case.classes // case.ranks * ranks,
            "batch": case.samples // ranks,
            "seconds": seconds,
        }
        asked.update(image_shape=image_shape, threads=threads)
        said = benchmark.run_ranks(
            ["plan", "-c", str(config), "--work", json.dumps(asked), str(found)], ranks, Path(folder, "log")
        )
        if not found.exists():
            raise UserError(f"plsc-plan: the calibration failed: {said}")
        return {**json.loads(found.read_text()), "ranks": ranks}


def work(cfg: Config, asked: dict) -> dict:
    """The calibration on this rank; every rank calls it."""
    threads, _ = environment.prepare(asked["threads"])
    from plsc import distributed
    from plsc.heads.cost import Trial

    distributed.init("cpu", threads)
    small = {"Head": {"sample_rate": 1.0}}
    Trial(_with(cfg, **small), 1000, 8).step()
    base = benchmark.resident_bytes()
    found: dict = {"base": base, "threads": threads, "head": {}, "backbone": [], "parameters": 0}
    rates = {"full": 1.0, "sampled": min(cfg.Head.sample_rate, 0.1)}
    kinds = rates if cfg.Head.name.startswith("dist_") else ["full"]
    for kind in kinds:
        found["head"][kind] = _head_times(cfg, rates[kind], asked, asked["seconds"] / (len(kinds) + 1))
    if asked["image_shape"]:
        found.update(_backbone_costs(cfg, asked, asked["seconds"] / (len(kinds) + 1)))
    return found


def _with(cfg: Config, **sections: dict) -> Config:
    changed = {name: getattr(cfg, name).model_copy(update=keys) for name, keys in sections.items()}
    return cfg.model_copy(update=changed)


def _head_times(cfg: Config, rate: float, asked: dict, seconds: float) -> list[list[float]]:
    """[K, seconds of a step] for growing numbers of classes, while there is time."""
    from plsc import distributed
    from plsc.heads.cost import Trial

    began, found, ranks = time.monotonic(), [], distributed.world_size()
    rows, most = SMALLEST / rate, min(asked["classes"] / ranks, MOST_ROWS)
    while True:
        rows = min(rows, most)
        trial = Trial(_with(cfg, Head={"sample_rate": rate}), max(2, int(rows * ranks)), asked["batch"])
        trial.step()
        spent = benchmark.alternate(_STEPS, {"step": trial.step})["step"]
        found.append([trial.head.bank.selected, spent])
        elapsed = time.monotonic() - began
        more = (
            rows < most and elapsed + 4 * elapsed < seconds * 2.5
        )  # the next takes about four times as long
        if not distributed.every(more):
            return found
        rows *= 4


def _backbone_costs(cfg: Config, asked: dict, seconds: float) -> dict:
    """Seconds and bytes of forward and backward for growing batches, less than a step of the run's."""
    import paddle

    from plsc import distributed

    backbone = cfg.Model.build(
        embedding_size=cfg.Model.embedding_size, image_shape=tuple(asked["image_shape"])
    )
    parameters = sum(p.size for p in backbone.parameters() if not p.stop_gradient)
    batch, found, began = 4, [], time.monotonic()
    before = benchmark.resident_bytes()
    while True:
        images = paddle.randn([batch, *asked["image_shape"]])
        grad = paddle.randn([batch, cfg.Model.embedding_size])

        def step(images=images, grad=grad) -> None:
            backbone(images).flatten(1).backward(grad)
            backbone.clear_gradients()

        step()
        benchmark.reset_peak()
        spent = benchmark.alternate(_STEPS, {"step": step})["step"]
        found.append([batch, spent, benchmark.resident_bytes("VmHWM") - before])
        elapsed = time.monotonic() - began
        if not distributed.every(batch < asked["batch"] and 3 * elapsed < seconds):
            return {"backbone": found, "parameters": parameters}
        batch = min(4 * batch, asked["batch"])


# ---- the prediction


def along(points: Sequence[Sequence[float]], x: float) -> float:
    """y at `x`: between the measured points [x, y] on straight lines, beyond the last along the line from the first to it."""
    xs, ys = (np.array([point[axis] for point in points], float) for axis in (0, 1))
    if x <= xs[-1]:
        return float(np.interp(x, xs, ys))
    slope = (ys[-1] - ys[0]) / (xs[-1] - xs[0]) if len(xs) > 1 else ys[-1] / xs[-1]
    return float(ys[-1] + slope * (x - xs[-1]))


def head_seconds(case: Case, found: dict, rate: float) -> float:
    points = found["head"]["full" if rate == 1 else "sampled"]
    return along(points, case.selected(rate))


def head_bytes(case: Case, rate: float) -> dict[str, int]:
    """Bytes of the head on a rank, by part."""
    from plsc.heads.cost import memory

    cfg = case.cfg
    threads = max(1, (os.cpu_count() or 1) // case.ranks)
    return memory(cfg.Head, case.shard, case.selected(rate), cfg.Model.embedding_size, case.samples, threads)


def backbone_bytes(case: Case, found: dict) -> dict[str, int]:
    """Bytes of the backbone on a rank: value, gradient, momentum; and what its activations take."""
    if not found["backbone"]:
        return {}
    weights = 3 * 4 * found["parameters"]
    peak = along([(batch, peak) for batch, _, peak in found["backbone"]], case.batch)
    return {"backbone": weights, "activations": max(0, round(peak) - 2 * 4 * found["parameters"])}


def largest(case: Case, others: int, memory: float) -> int:
    """The most classes for which the head's bytes on a rank, its whole Head.logits_budget_mb among them, and `others` are within
    `memory` bytes."""
    rate, budget = case.cfg.Head.sample_rate, int(case.cfg.Head.logits_budget_mb * 2**20)
    low, high = 0, 2**40
    while high - low > 1:
        middle = (low + high) // 2
        parts = head_bytes(Case(case.cfg, middle, case.ranks, case.batch), rate)
        # Whole, since more classes may need less: exponentials that do not fit the budget are not kept.
        parts["blocks"] = max(parts["blocks"], budget)
        fits = sum(parts.values()) + others <= memory
        low, high = (middle, high) if fits else (low, middle)
    return low


def plan(case: Case, found: dict, memory: float) -> dict:
    """All that is told, from a calibration; `memory`: bytes for each rank."""
    rate = case.cfg.Head.sample_rate
    parts = {"Paddle": found["base"], **backbone_bytes(case, found)}
    fixed = sum(parts.values())
    backbone = along([point[:2] for point in found["backbone"]], case.batch) if found["backbone"] else None
    rates = RATES if "sampled" in found["head"] else (1.0,)
    return {
        "classes": case.classes,
        "ranks": case.ranks,
        "batch": case.batch,
        "rate": rate,
        "bytes": {**parts, **head_bytes(case, rate)},
        "memory": memory,
        "head_seconds": head_seconds(case, found, rate),
        "backbone_seconds": backbone,
        "largest_classes": largest(case, fixed, memory),
        "rates": [
            {
                "rate": each,
                "selected": case.selected(each),
                "head_seconds": head_seconds(case, found, each),
                "bytes": fixed + sum(head_bytes(case, each).values()),
            }
            for each in sorted({*rates, rate}, reverse=True)
        ],
        "calibration": found,
    }


def verdict(planned: dict) -> str:
    """Whether a lower rate pays, in a sentence."""
    present = next(row for row in planned["rates"] if row["rate"] == planned["rate"])
    lower = [row for row in planned["rates"] if row["rate"] < planned["rate"]]
    rest = planned["backbone_seconds"] or 0.0
    whole = present["head_seconds"] + rest
    for row in lower:  # the highest rate that gets most of what there is to be had
        saved = (present["head_seconds"] - row["head_seconds"]) / whole
        best = (present["head_seconds"] - min(each["head_seconds"] for each in lower)) / whole
        if saved >= PAYS and saved >= 0.8 * best:
            return f"a rate of {row['rate']:g} saves {saved:.0%} of a step"
    return f"a lower rate does not pay: it saves less than {PAYS:.0%} of a step"


def show(planned: dict) -> str:
    mb, found = 2**20, planned["calibration"]
    total = sum(planned["bytes"].values())
    rows = [[name, size / mb] for name, size in planned["bytes"].items()] + [["all", total / mb]]
    rates = [
        [row["rate"], row["selected"], 1e3 * row["head_seconds"], row["bytes"] / mb]
        for row in planned["rates"]
    ]
    furthest = max(point[0] for points in found["head"].values() for point in points)
    lines = [
        f"{planned['classes']:,} classes on {planned['ranks']} ranks, {planned['batch']} samples each, rate {planned['rate']:g}",
        "",
        log.table(rows, ["of a rank", "MB"]),
        "",
        log.table(rates, ["rate", "classes in a step", "head, ms", "all, MB"]),
        "",
        f"memory: {total / mb:,.0f} of {planned['memory'] / mb:,.0f} MB for each rank; up to {planned['largest_classes']:,} classes fit",
        f"time of a step: head {1e3 * planned['head_seconds']:.1f} ms",
    ]
    if planned["backbone_seconds"] is not None:
        lines[-1] += (
            f", backbone {1e3 * planned['backbone_seconds']:.1f} ms, without optimizer and the ranks' waiting"
        )
    lines += [
        verdict(planned),
        f"calibrated on {found['ranks']} of {planned['ranks']} ranks x {found['threads']} threads, up to {furthest:,} classes in a step",
    ]
    if planned["bytes"] and total > planned["memory"]:
        lines.append("it does NOT fit: more ranks, a lower embedding size, or another Head.bank")
    return "\n".join(lines)


def config_of(args: argparse.Namespace) -> Config:
    keys = {"Head.sample_rate": args.rate, "Head.bank": args.bank, "Head.compute_dtype": args.dtype}
    keys["DataLoader.Train.batch_size"] = args.batch
    given = [f"{key}={value}" for key, value in keys.items() if value is not None]
    return load(args.config, [*args.override, *given])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("plsc-plan", description=__doc__.splitlines()[0])
    add_arguments(parser)
    parser.add_argument("--classes", type=int, help="default: what the data has")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--batch", type=int, help="DataLoader.Train.batch_size, samples of a rank")
    parser.add_argument("--rate", type=float, help="Head.sample_rate")
    parser.add_argument("--bank", help="Head.bank")
    parser.add_argument("--dtype", help="Head.compute_dtype")
    parser.add_argument(
        "--memory", type=float, help="GB for each rank; default: what this machine has free, shared out"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of calibration, about")
    parser.add_argument("--json", type=Path, help="also write the numbers there")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)  # the calibration in new processes
    args = parser.parse_args(argv)
    cfg = config_of(args)
    if args.work:
        found = work(cfg, json.loads(args.work[0]))
        if environment.rank_from_env() == 0:
            Path(args.work[1]).write_text(json.dumps(found))
        return 0
    for key in ("classes", "ranks"):
        if getattr(args, key) is not None and getattr(args, key) < 1:
            raise UserError(f"--{key}: must be 1 or more (got {getattr(args, key)})")
    cfg.check_data()
    dataset = cfg.DataLoader.Train.dataset.build(seed=cfg.Global.seed)
    case = Case(cfg, args.classes or dataset.num_classes, args.ranks, cfg.DataLoader.Train.batch_size)
    free = args.memory * 2**30 if args.memory else available_bytes() / min(args.ranks, os.cpu_count() or 1)
    planned = plan(case, calibrate(case, args.seconds, dataset.image_shape, None), free)
    print(show(planned))
    if args.json:
        args.json.write_text(json.dumps(planned, indent=1) + "\n")
    return 0


def available_bytes() -> int:
    """Memory that programs of this machine can still get (Linux)."""
    line = next(
        line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")
    )
    return int(line.split()[1]) * 1024
