"""Measure training steps' memory and time, also with accumulated batches and with recomputed layers.

    python -m benchmarks step --name IResNet18 --batch 16 --accumulate 4 --also Optimizer.name=AdamW

Each case runs in its own process, or in one process per rank. It takes whole training steps (data, backbone,
head, optimizer) on noise.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks import measure, run_ranks
from benchmarks.machine import describe_machine, format_machine
from plsc.config import Config, load
from plsc.distributed import environment
from plsc.errors import UserError
from plsc.utils.text import table


def add_arguments(part: argparse.ArgumentParser) -> None:
    part.add_argument("--name", default="IResNet18", help="Model.name")
    part.add_argument("--size", type=int, default=112, help="height and width of the images")
    part.add_argument("--batch", type=int, default=16, help="samples per micro-batch")
    part.add_argument("--accumulate", type=int, default=4, help="micro-batches per step")
    part.add_argument("--classes", type=int, default=10_000)
    part.add_argument("--dim", type=int, default=512, help="embedding size")
    part.add_argument(
        "--runs",
        type=int,
        default=3,
        help="measured steps, after one that is not measured; the median counts",
    )
    part.add_argument("--threads", type=int, help="default: all processors")
    part.add_argument("--ranks", type=int, default=1, help="processes per case")
    part.add_argument("--device", default="cpu", help="as Global.device")
    part.add_argument(
        "--recompute", type=json.loads, default=True, help="Model.recompute for two of the cases, in JSON"
    )
    part.add_argument(
        "--also",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="config keys; each is measured with the first case",
    )
    part.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)  # batch, accumulate, key
    part.add_argument("--row", type=Path, help=argparse.SUPPRESS)  # file that a case's process writes


def step(args: argparse.Namespace) -> dict:
    """Measure a training step's memory and time, with accumulation and recomputation."""
    if args.case:
        return _measure(args, *args.case)
    whole = args.batch * args.accumulate
    recompute = f"Model.recompute={json.dumps(args.recompute)}"
    cases = [(args.batch, 1, ""), (args.batch, args.accumulate, ""), (whole, 1, "")]
    cases += [(args.batch, 1, recompute), (args.batch, args.accumulate, recompute)]
    cases += [(args.batch, 1, key) for key in args.also]
    return {**describe_machine(), "name": args.name, "rows": [_row(args, case) for case in cases]}


def _row(args: argparse.Namespace, case: tuple[int, int, str]) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "row.json")
        keys = ("name", "size", "classes", "dim", "runs", "threads", "ranks", "device")
        given = {key: getattr(args, key) for key in keys if getattr(args, key) is not None}
        words = [word for key, value in given.items() for word in (f"--{key}", str(value))]
        asked = ["step", *words, "--case", json.dumps(case), "--row", str(target)]
        last_line = run_ranks(asked, args.ranks, Path(folder, "log"))
        if not target.exists():
            raise UserError(f"batch, accumulate, keys {case} were not measured: {last_line}")
        return json.loads(target.read_text())


def _shape(args: argparse.Namespace) -> list[int]:
    return [1 if args.name in ("SmallResNet", "LeNet") else 3, args.size, args.size]


def _config(args: argparse.Namespace, batch: int, accumulate: int, key: str, folder: str) -> Config:
    images = -(-(args.runs + 1) * batch * accumulate * args.ranks // args.classes)
    data = {
        "name": "Synthetic",
        "num_classes": args.classes,
        "images_per_class": images,
        "image_shape": _shape(args),
    }
    keys = {
        "Global.output_dir": folder,
        "Model.name": args.name,
        "Model.embedding_size": args.dim,
        "DataLoader.Train.dataset": data,
        "DataLoader.Train.batch_size": batch,
        "DataLoader.Train.global_batch": batch * accumulate * args.ranks,
        "DataLoader.Eval.dataset": None,
    }
    return load(
        None, [*(f"{name}={json.dumps(value)}" for name, value in keys.items()), *([key] if key else [])]
    )


def _measure(args: argparse.Namespace, batch: int, accumulate: int, key: str) -> dict:
    threads = environment.prepare(args.threads)
    import paddle

    from plsc import distributed
    from plsc.training.build import build_trainer

    distributed.init(args.device, threads)
    paddle.matmul(paddle.ones([64, 64]), paddle.ones([64, 64]))
    before = measure.used_bytes()
    with tempfile.TemporaryDirectory() as folder:  # training creates its output folder
        trainer = build_trainer(_config(args, batch, accumulate, key, folder))
    seconds = []
    measure.reset_peak()
    for samples in itertools.islice(trainer.loader.from_step(0), args.runs + 1):
        measure.finish()
        began = time.perf_counter()
        trainer.train_step(samples)
        measure.finish()
        seconds.append(time.perf_counter() - began)
    return {
        "batch": batch,
        "accumulate": accumulate,
        "key": key,
        "peak_bytes": measure.peak_bytes() - before,
        "seconds": statistics.median(seconds[1:]),
    }


def show(result: dict) -> str:
    first = result["rows"][0]["peak_bytes"]
    rows = [
        [
            f"{row['accumulate']} x {row['batch']}",
            row["key"] or None,
            row["peak_bytes"] / 1e6,
            f"{row['peak_bytes'] / first:.2f}",
            row["seconds"],
            row["batch"] * row["accumulate"] / row["seconds"],
        ]
        for row in result["rows"]
    ]
    headers = ["samples of a step", "with", "peak, MB", "of the first", "s a step", "images/s"]
    return f"{result['name']}, {format_machine(result)}\n{table(rows, headers)}"
