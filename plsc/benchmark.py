"""Speed and memory of the parts, measured: `python tools/benchmark.py head --classes 1000000 --dim 128`, or `loader`.

Timings on a shared machine drift, so what is compared is measured alternately in one run and given as a ratio of medians. Memory
is the process's peak resident set above what it was once Paddle had computed something, from /proc (Linux).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from plsc import environment


def resident_bytes(field: str = "VmRSS") -> int:
    """This process's resident memory now ("VmRSS") or at its peak ("VmHWM"), in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def reset_peak() -> None:
    """Let VmHWM start again from the present."""
    Path("/proc/self/clear_refs").write_text("5")


def head(args: argparse.Namespace) -> dict:
    """One step of the head (forward, backward, update), against the three bare matrix products of the same shapes."""
    threads, _ = environment.prepare(args.threads)
    import paddle

    from plsc import distributed
    from plsc.heads.blocks import plan_blocks
    from plsc.heads.margins import ArcFace
    from plsc.heads.softmax import SoftmaxHead

    distributed.init("cpu", threads)
    rng = np.random.default_rng(0)
    emb = paddle.to_tensor(rng.standard_normal((args.batch, args.dim)), dtype="float32", stop_gradient=False)
    label = paddle.to_tensor(rng.integers(0, args.classes, args.batch))

    def step(head: SoftmaxHead) -> None:
        head(emb, label % head.shard.num_classes).loss.backward()
        head.step(0.1)
        emb.clear_grad()

    budget = int(args.budget_mb * 2**20)
    step(
        SoftmaxHead(1000, args.dim, ArcFace(), scale=64.0)
    )  # Paddle's own base: libraries, threads, first buffers
    base = resident_bytes()
    reset_peak()
    measured = SoftmaxHead(args.classes, args.dim, ArcFace(), scale=64.0, budget=budget)
    for _ in range(2):
        step(measured)
    peak = resident_bytes("VmHWM") - base
    bank = 3 * 4 * args.classes * args.dim
    block, kept = plan_blocks(args.batch, args.classes, args.dim, 1, budget)
    seconds = alternate(args.runs, {"step": lambda: step(measured), "products": bare_products(args)})
    return {
        **{key: value for key, value in vars(args).items() if key not in ("part", "json")},
        "threads": threads,
        "block": block,
        "exponentials": "kept" if kept else "recomputed",
        "bank_mb": bank / 2**20,
        "peak_mb": peak / 2**20,
        "allowed_mb": (bank + budget) * 1.1 / 2**20,
        "step_seconds": seconds["step"],
        "products_seconds": seconds["products"],
        "step_over_products": seconds["step"] / seconds["products"],
    }


def bare_products(args: argparse.Namespace):
    """The floor: [N, D] x [D, C], [N, C] x [C, D] and [C, N] x [N, D] by paddle.matmul, whole if [N, C] fits 2 GB."""
    import paddle

    classes = min(args.classes, 2**31 // (4 * args.batch))
    repeat = args.classes / classes
    emb, centres = paddle.randn([args.batch, args.dim]), paddle.randn([classes, args.dim])

    def run() -> float:
        logits = paddle.matmul(emb, centres, transpose_y=True)
        paddle.matmul(logits, centres)
        paddle.matmul(logits, emb, transpose_x=True)
        return repeat

    return run


def alternate(runs: int, work: dict) -> dict:
    """Median seconds of each, run in turn `runs` times; a number that the work returns scales its time."""
    times: dict[object, list[float]] = {name: [] for name in work}
    for _ in range(runs):
        for name, function in work.items():
            began = time.perf_counter()
            factor = function() or 1.0
            times[name].append((time.perf_counter() - began) * factor)
    return {name: statistics.median(values) for name, values in times.items()}


def show(found: dict) -> str:
    """One number or word a line."""
    return "\n".join(
        f"{key:20}{value:,.3f}" if isinstance(value, float) else f"{key:20}{value}"
        for key, value in found.items()
    )


def main(argv: list[str] | None = None) -> int:
    from plsc import benchmark_backbone, benchmark_loader, benchmark_save  # which take `alternate` from here

    parser = argparse.ArgumentParser("benchmark", description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    of_head = parts.add_parser("head", help=head.__doc__)
    of_head.add_argument("--classes", type=int, default=100_000)
    of_head.add_argument("--dim", type=int, default=512, help="embedding size")
    of_head.add_argument("--batch", type=int, default=256, help="samples in the global batch")
    of_head.add_argument("--budget-mb", type=float, default=64.0, help="Head.logits_budget_mb")
    of_head.add_argument("--threads", type=int, help="default: all processors")
    of_loader = parts.add_parser("loader", help=benchmark_loader.loader.__doc__)
    of_loader.add_argument(
        "path", nargs="?", help="a .rec or list file; default: synthetic jpgs, made for the run"
    )
    of_loader.add_argument("--images", type=int, default=4000, help="synthetic jpgs")
    of_loader.add_argument("--size", type=int, default=112, help="height and width")
    of_loader.add_argument("--batch", type=int, default=128)
    of_loader.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parts.add_parser("backbone", help="parameters, MACs and speed of the backbones; has arguments of its own")
    of_save = parts.add_parser("save", help=benchmark_save.save.__doc__)
    benchmark_save.add_arguments(of_save)
    for part in (of_head, of_loader, of_save):
        part.add_argument("--runs", type=int, default=5)
        part.add_argument("--json", type=Path, help="also write the numbers there")
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["backbone"]:
        return benchmark_backbone.main(argv[1:])
    args = parser.parse_args(argv)
    if args.part == "head":
        found = head(args)
        print(show(found))
    elif args.part == "save":
        found = benchmark_save.save(args)
        print(benchmark_save.show(found))
    else:
        found = benchmark_loader.loader(args)
        print(benchmark_loader.show(found))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0
