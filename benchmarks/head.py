"""Measure time and memory of a head's step.

The step is compared with bare matrix products and with a dense head by autograd:

    python -m benchmarks head --classes 10000 100000 1000000 --rate 1 0.1 --ranks 1 2

Every combination is a row. Each row is measured in new processes, so that rows do not share memory. Within a
row all variants take turns. The bare products are a lower bound. They are [N, D] x [D, K], [N, K] x [K, D]
and [K, N] x [N, D] by paddle.matmul. The dense head has all C classes in one process, with ArcFace and
Momentum as a user of Paddle would write them, whatever the config names. It is skipped if it would not fit
into memory. `--device-way` runs the operators of devices on this CPU. `python -m pytest -m slow
tests/gpu_ops` counts their kernels, waits and bytes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import MAIN, measure, run_ranks
from benchmarks.machine import describe_machine, format_machine
from plsc.config import Config, add_overrides, load
from plsc.distributed import environment
from plsc.errors import UserError
from plsc.utils.text import table

MOST_DENSE = 6 << 30  # most memory for the dense head, in bytes
_ONE_ROW = 2**31  # largest memory of the bare products' logits at a time, in bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--classes", type=int, nargs="+", default=[100_000], help="C, the class count")
    parser.add_argument("--rate", type=float, nargs="+", default=[1.0], help="Head.sample_rate")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1], help="processes on this machine")
    parser.add_argument("--batch", type=int, default=256, help="N, samples on all ranks together")
    parser.add_argument("--dim", type=int, default=512, help="D, embedding size")
    parser.add_argument(
        "--threads", type=int, help="threads per rank; default: an equal share of the processors"
    )
    parser.add_argument("--device-way", action="store_true", help="use Paddle's operators, as on devices")
    parser.add_argument("--old", type=Path, help="a built clone to compare with; processes take turns")
    parser.add_argument("--no-dense", action="store_true", help="skip the dense head")
    parser.add_argument("--runs", type=int, default=5, help="runs of each, in turn; medians count")
    add_overrides(parser, "as in training")
    parser.add_argument("--row", type=Path, help="measure one row in this process, and write it to this file")


def config(args: argparse.Namespace, rate: float) -> Config:
    given = [f"Model.embedding_size={args.dim}", f"Head.sample_rate={rate}", *args.override]
    return load(None, given)


def head(args: argparse.Namespace) -> dict:
    """Measure a head's step: forward pass, backward pass and update."""
    for ranks in args.ranks:
        if args.batch % ranks:
            raise UserError(f"--batch: must be a multiple of --ranks {ranks} (got {args.batch})")
    for rate in args.rate:
        config(args, rate)  # reports a mistake in the config once
    if args.device_way:
        os.environ["PLSC_KERNELS"] = "0"
    if args.row:
        (classes,), (rate,) = args.classes, args.rate
        return measure_row(config(args, rate), classes, args)
    measured = _in_turn_with_old if args.old else _in_new_processes
    rows = [measured(*each, args) for each in itertools.product(args.classes, args.rate, args.ranks)]
    return {**describe_machine(), "rows": rows}


def _in_turn_with_old(classes: int, rate: float, ranks: int, args: argparse.Namespace) -> dict:
    """Measure a row in both clones, `args.runs` times in turn. The medians count."""
    mains = {"new": MAIN, "old": args.old.resolve() / "benchmarks" / MAIN.name}
    found: dict[str, list[dict]] = {name: [] for name in mains}
    for _ in range(args.runs):
        for name, main in mains.items():
            found[name].append(_in_new_processes(classes, rate, ranks, args, main))
    medians = {
        (name, key): statistics.median(row[key] for row in rows)
        for name, rows in found.items()
        for key in ("step_seconds", "peak_bytes")
    }
    new = {key: medians["new", key] for key in ("step_seconds", "peak_bytes")}
    over_old = {f"{key}_over_old": new[key] / medians["old", key] for key in new}
    return {**found["new"][0], **new, **over_old}


def _in_new_processes(
    classes: int, rate: float, ranks: int, args: argparse.Namespace, main: Path = MAIN
) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        row = Path(folder, "row.json")
        arguments = ["head", "--classes", classes, "--rate", rate, "--batch", args.batch]
        arguments += ["--dim", args.dim, "--runs", args.runs, "--row", row]
        arguments += ["--threads", args.threads] if args.threads else []
        arguments += ["--no-dense"] if args.no_dense else []
        arguments += ["-o", *args.override] if args.override else []
        asked = [str(argument) for argument in arguments]
        last_line = run_ranks(asked, ranks, Path(folder, "log"), main)
        if not row.exists():
            raise UserError(f"{classes:,} classes on {ranks} ranks were not measured: {last_line}")
        return json.loads(row.read_text())


def measure_row(cfg: Config, classes: int, args: argparse.Namespace) -> dict:
    """Measure a row in this process, or on all ranks.

    Returns: median times in seconds, and this rank's peak memory in bytes.
    """
    threads = environment.prepare(args.threads)
    from plsc import distributed

    distributed.init(cfg.Global.device, threads)
    ranks = distributed.world_size()
    Trial(cfg, 1000, 8).step()  # loads Paddle's libraries, threads and first buffers, which are not counted
    base = measure.used_bytes()
    measure.reset_peak()
    trial = Trial(cfg, classes, args.batch // ranks)
    for _ in range(2):
        trial.step()
    peak = measure.peak_bytes() - base
    selected = trial.selected
    work = {"step": trial.step, "products": bare_products(args.batch, args.dim, selected)}
    dense_bytes = 4 * (5 * classes * args.dim + 6 * args.batch * classes)
    if ranks == 1 and dense_bytes < MOST_DENSE and not args.no_dense:
        work["dense"] = Dense(classes, args.dim, trial).step
    seconds = measure.alternate(args.runs, work, measure.finish)
    return {
        "classes": classes,
        "rate": cfg.Head.sample_rate,
        "ranks": ranks,
        "selected": selected,
        "batch": args.batch,
        "dim": args.dim,
        "threads": threads,
        "override": args.override,
        "step_seconds": seconds["step"],
        "products_seconds": seconds["products"],
        "dense_seconds": seconds.get("dense"),
        "step_over_products": seconds["step"] / seconds["products"],
        "step_over_dense": seconds["step"] / seconds["dense"] if "dense" in seconds else None,
        "peak_bytes": peak,
    }


class Trial:
    """Runs steps of a config's head on random embeddings and labels. Every rank makes one.

    Args:
        cfg: the config.
        classes: classes on all ranks.
        samples: samples on this rank.
    """

    def __init__(self, cfg: Config, classes: int, samples: int):
        import paddle

        from plsc import distributed
        from plsc.heads.build import build_head

        rule = cfg.Optimizer.build_rule()
        self.head = build_head(cfg.Head, rule, classes, cfg.Model.embedding_size, seed=0, amp=cfg.Global.amp)
        rng = np.random.default_rng(distributed.rank())
        noise = rng.standard_normal((samples, cfg.Model.embedding_size), np.float32)
        self.emb = paddle.to_tensor(noise, stop_gradient=False)
        self.label = paddle.to_tensor(rng.integers(0, classes, samples))
        self.number = 0

    def step(self) -> None:
        """Run forward, backward and update, and wait for the bank."""
        out = self.head(self.emb, self.label, self.number)
        out.loss.backward()
        self.selected = out.selection.count
        self.head.update(0.1, self.number)
        self.head.bank.state()  # waits for reads and writes that run in the background
        self.emb.clear_grad()
        self.number += 1


def bare_products(batch: int, dim: int, selected: int):
    """Return a function that computes the three products and returns a factor for its time.

    If the logits take more than 2 GB, the function computes only a part. The factor says how many such parts
    there are.
    """
    import paddle

    classes = max(1, min(selected, _ONE_ROW // (4 * batch)))
    emb, centres = paddle.randn([batch, dim]), paddle.randn([classes, dim])

    def run() -> float:
        logits = paddle.matmul(emb, centres, transpose_y=True)
        paddle.matmul(logits, centres)
        paddle.matmul(logits, emb, transpose_x=True)
        return float(selected / classes)

    return run


class Dense:
    """Computes ArcFace's loss by autograd over the whole logits [N, C], with Paddle's Momentum."""

    def __init__(self, classes: int, dim: int, trial: Trial, scale: float = 64.0):
        import paddle

        rows = np.random.default_rng(0).standard_normal((classes, dim), np.float32)
        self.centres = paddle.create_parameter(list(rows.shape), "float32")
        self.centres.set_value(rows)
        self.emb = trial.emb
        self.label = trial.label
        self.scale = scale
        self.optimizer = paddle.optimizer.Momentum(0.1, 0.9, [self.centres], weight_decay=5e-4)

    def loss(self):
        import paddle
        import paddle.nn.functional as F

        cosine = paddle.matmul(F.normalize(self.emb), F.normalize(self.centres), transpose_y=True)
        column = self.label.unsqueeze(1)
        own = paddle.take_along_axis(cosine, column, 1).clip(-0.9999, 0.9999)
        moved = paddle.cos(paddle.acos(own) + 0.5)
        logits = self.scale * paddle.put_along_axis(cosine, column, moved, 1)
        return F.cross_entropy(logits, self.label)

    def step(self) -> None:
        self.loss().backward()
        self.optimizer.step()
        self.optimizer.clear_grad()
        self.emb.clear_grad()


def show(result: dict) -> str:
    """Format a table. Times are in milliseconds, and memory is rank 0's in MB."""
    columns = ("classes", "rate", "ranks", "threads", "batch", "dim")
    rows = [
        [row[name] for name in columns]
        + [1e3 * row["step_seconds"], row["step_over_products"], row["step_over_dense"]]
        + [row["peak_bytes"] / 1e6]
        + [row.get(f"{key}_over_old") for key in ("step_seconds", "peak_bytes")]
        for row in result["rows"]
    ]
    headers = [*columns, "step, ms", "x products", "x dense", "peak, MB", "x old", "MB x old"]
    return f"{format_machine(result)}\n{table(rows, headers)}"
