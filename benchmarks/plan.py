"""Compare the predictions of plsc plan with measurements of seven heads.

    python -m benchmarks plan --json plan.json

Time is of a step of the head; memory is the head's part of rank 0's peak. Each is planned from a calibration
of its own, as by `plsc plan`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks import MAIN
from benchmarks.machine import describe_machine, format_machine
from plsc.apps.plan import plan
from plsc.config import load
from plsc.distributed import launcher
from plsc.errors import UserError
from plsc.utils.memory import available_bytes
from plsc.utils.text import table

# classes, embedding size, samples of a rank, ranks, rate, further keys of Head
CASES = (
    (10_000, 512, 128, 1, 1.0, []),
    (100_000, 512, 256, 1, 1.0, []),
    (1_000_000, 128, 256, 1, 0.1, []),
    (200_000, 128, 128, 2, 1.0, []),
    (300_000, 256, 256, 1, 0.2, ["Head.bank=host"]),
    (300_000, 256, 256, 1, 0.2, ["Head.bank=host", "Head.bank_dtype=bfloat16"]),
    (1_000_000, 512, 128, 1, 0.02, ["Head.bank=disk", "Head.bank_dtype=bfloat16"]),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", type=int, nargs="+", default=[*range(len(CASES))], help="numbers, from 0")
    parser.add_argument("--runs", type=int, default=7, help="steps measured; the median counts")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each calibration, about")


def check(args: argparse.Namespace) -> dict:
    """Compare plsc plan's predictions with measurements."""
    return {**describe_machine(), "rows": [row(*CASES[number], args) for number in args.cases]}


def row(
    classes: int, dim: int, batch: int, ranks: int, rate: float, more: list[str], args: argparse.Namespace
) -> dict:
    keys = [f"Head.sample_rate={rate}", *more]
    case = plan.Case(load(None, [f"Model.embedding_size={dim}", *keys]), classes, ranks, batch)
    calibration = plan.calibrate(case, args.seconds, None, None)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "row.json")
        sizes = [
            "--classes",
            classes,
            "--rate",
            rate,
            "--batch",
            batch * ranks,
            "--dim",
            dim,
            "--runs",
            args.runs,
        ]
        asked = ["head", *map(str, sizes), "--no-dense", "--row", str(target), "-o", *keys]
        last_line = launcher.run_ranks(asked, ranks, Path(folder, "log"), main=MAIN)
        if not target.exists():
            raise UserError(f"{classes:,} classes on {ranks} ranks were not measured: {last_line}")
        measured = json.loads(target.read_text())
    size = sum(plan.head_bytes(case, rate).values())
    disk = plan.disk_of(case, available_bytes() / plan.on_this_machine(ranks), calibration["base"] + size)
    return {
        "classes": classes,
        "dim": dim,
        "batch": batch,
        "ranks": ranks,
        "rate": rate,
        "override": more,
        "planned_seconds": plan.head_seconds(case, calibration, rate, disk),
        "seconds": measured["step_seconds"],
        "planned_bytes": size,
        "bytes": measured["peak_bytes"],
    }


def show(result: dict) -> str:
    rows = []
    for each in result["rows"]:
        pairs = [each[key] for key in ("planned_seconds", "seconds", "planned_bytes", "bytes")]
        ms, measured_ms, size, measured = (x * scale for x, scale in zip(pairs, (1e3, 1e3, 2**-20, 2**-20)))
        head = [
            " ".join(each["override"]) or None,
            each["classes"],
            each["dim"],
            each["batch"],
            each["ranks"],
        ]
        rows.append(
            [*head, each["rate"], ms, measured_ms, f"{ms / measured_ms - 1:+.0%}", size, measured]
            + [f"{size / measured - 1:+.0%}"]
        )
    headers = [
        "head",
        "classes",
        "D",
        "batch",
        "ranks",
        "rate",
        "planned, ms",
        "ms",
        "off",
        "planned, MB",
        "MB",
        "off",
    ]
    return f"{format_machine(result)}\n{table(rows, headers)}"
