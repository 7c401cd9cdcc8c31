"""Measure a short training's images per second, also against another version of plsc.

    python -m benchmarks end2end -c configs/ --ranks 2 --against ../plsc-before

Each run is a separate training without evaluation, started as a user starts it. The versions take turns. A
run's first log line does not count, since it includes starting the workers and allocating memory.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import plsc
from benchmarks.machine import describe_machine, format_machine
from plsc import config
from plsc.distributed import launcher
from plsc.errors import UserError
from plsc.training.metrics import read_metrics

HERE = Path(plsc.__file__).resolve().parent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    config.add_arguments(parser)
    parser.add_argument("--ranks", type=int, default=2, help="processes on this machine")
    parser.add_argument("--steps", type=int, default=60, help="steps per run")
    parser.add_argument("--runs", type=int, default=3, help="runs of each version, in turn; medians count")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="a checkout of another version")


def end2end(args: argparse.Namespace) -> dict:
    """Measure images per second."""
    config.load(args.config, args.override)  # reports a mistake in the config once
    versions = {"this": HERE}
    if args.against:
        versions["against"] = args.against / "plsc"
        if not (args.against / "plsc" / "__main__.py").exists():
            raise UserError(
                f"--against: {args.against} is not a checkout of plsc; give the folder that holds plsc/"
            )
    rates: dict[str, list[float]] = {version: [] for version in versions}
    rows: list[dict] = []
    for _ in range(args.runs):
        for version, package in versions.items():
            training = train(package, args)
            rates[version].append(statistics.median(row["images_per_second"] for row in training))
            rows += training if version == "this" else []
    median = {version: statistics.median(values) for version, values in rates.items()}
    return {
        **describe_machine(),
        "config": args.config,
        "override": args.override,
        "ranks": args.ranks,
        "images_per_second": median["this"],
        "over_against": median["this"] / median["against"] if args.against else None,
        "data_wait": statistics.median(row["data_wait"] for row in rows),
    }


def train(package: Path, args: argparse.Namespace) -> list[dict]:
    """Train with the plsc in the folder `package`. Return its rows in metrics.jsonl, except the first."""
    with tempfile.TemporaryDirectory() as folder:
        every = max(1, args.steps // 6)
        given = [f"Global.output_dir={folder}", f"Global.max_steps={args.steps}", f"Global.log_every={every}"]
        given += ["DataLoader.Eval={dataset: null}"]
        arguments = ["train", *(["-c", args.config] if args.config else []), "-o", *args.override, *given]
        texts: list[str] = []
        main = package.resolve() / "__main__.py"
        ends = launcher.launch(arguments, args.ranks, Path(folder, "log"), texts.append, main)
        if set(ends.values()) != {0}:
            said = "".join(texts).strip().split("\n")[-3:]
            raise UserError(f"the training by {package} ended with exit codes {ends}: {' '.join(said)}")
        rows = [row for row in read_metrics(Path(folder, "metrics.jsonl")) if "loss" in row]
    return rows[1:] or rows


def show(result: dict) -> str:
    against = f", {result['over_against']:.2f} times the other version" if result["over_against"] else ""
    rate = f"{result['images_per_second']:,.0f} images/s on {result['ranks']} ranks{against}"
    return f"{format_machine(result)}\n{rate}; {result['data_wait']:.1%} of the time waits for data"
