"""Speed and memory of the parts, measured: `python tools/benchmark.py head | loader | backbone | collectives | end2end | plan | save`.

Timings on a shared machine drift, so what is compared is measured alternately in one run and given as a ratio of medians. Memory
is the process's peak resident set above what it was once Paddle had computed something, from /proc (Linux).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from plsc.distributed import environment, launcher


def resident_bytes(field: str = "VmRSS") -> int:
    """This process's resident memory now ("VmRSS") or at its peak ("VmHWM"), in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def reset_peak() -> None:
    """Let VmHWM start again from the present."""
    Path("/proc/self/clear_refs").write_text("5")


def alternate(runs: int, work: dict) -> dict:
    """Median seconds of each, run in turn `runs` times; a number that the work returns scales its time."""
    times: dict[object, list[float]] = {name: [] for name in work}
    for _ in range(runs):
        for name, function in work.items():
            began = time.perf_counter()
            factor = function()
            seconds = time.perf_counter() - began
            times[name].append(seconds * (factor if isinstance(factor, float) else 1.0))
    return {name: statistics.median(values) for name, values in times.items()}


def run_ranks(arguments: list[str], ranks: int, logs: Path) -> str:
    """`python -m plsc *arguments` on new processes; the last line that they say."""
    lines: list[str] = []
    if ranks > 1:
        launcher.launch(arguments, ranks, logs, lines.append)
    else:
        path = os.pathsep.join([os.getcwd(), *filter(None, sys.path)])
        done = subprocess.run(
            [sys.executable, "-m", "plsc", *arguments],
            check=False,
            env={**environment.for_ranks(), "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = done.stdout.splitlines()
    said = [line.strip() for line in lines if line.strip() and "LAUNCH" not in line]
    return said[-1] if said else "nothing was said"


def circumstances() -> dict:
    """What a number depends on besides the command: processor, Paddle, commit (None outside a checkout)."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        commit = subprocess.run(git, check=False, capture_output=True, text=True).stdout.strip() or None
    except FileNotFoundError:
        commit = None
    packages = {each.metadata["Name"]: each.version for each in metadata.distributions()}
    return {
        "machine": next(
            (line.split(": ")[1] for line in cpuinfo if line.startswith("model name")), "unknown"
        ),
        "processors": os.cpu_count(),
        "paddle": next((v for name, v in packages.items() if (name or "").startswith("paddlepaddle")), None),
        "commit": commit,
    }


def told(found: dict) -> str:
    """The circumstances in a line."""
    return f"{found['processors']} processors {found['machine']}, Paddle {found['paddle']}, commit {found['commit']}"


def draw(lines: dict[str, list[tuple[float, float]]], across: str, up: str) -> bytes:
    """A PNG: label -> points (x, y), both axes logarithmic."""
    from plsc.evaluation.report.style import COLOURS, new_figure, png_of, styled

    with styled():
        figure = new_figure(4.5)
        axes = figure.add_subplot(xlabel=across, ylabel=up, xscale="log", yscale="log")
        for number, (label, points) in enumerate(lines.items()):
            style = ("-", "--", ":")[number // len(COLOURS) % 3]
            axes.plot(*zip(*sorted(points)), f"o{style}", color=COLOURS[number % len(COLOURS)], label=label)
        axes.legend(loc="upper left", fontsize=8)
        return png_of(figure)


def main(argv: Sequence[str] | None = None) -> int:
    """`python tools/benchmark.py PART ...`."""
    # Here: they take from this module what they share.
    from plsc.cli.commands.benchmark import backbone, collectives, end2end, head, loader, plan, save

    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["backbone"]:
        return backbone.main(argv[1:])
    measures = {
        "head": (head, head.head),
        "loader": (loader, loader.loader),
        "collectives": (collectives, collectives.collectives),
        "end2end": (end2end, end2end.end2end),
        "plan": (plan, plan.check),
        "save": (save, save.save),
    }
    parser = argparse.ArgumentParser("benchmark", description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("backbone", help="parameters, MACs and speed of the backbones; has arguments of its own")
    for name, (module, measure) in measures.items():
        part = parts.add_parser(name, help=measure.__doc__)
        module.add_arguments(part)
        part.add_argument("--json", type=Path, help="also write the numbers there")
    args = parser.parse_args(argv)
    module, measure = measures[args.part]
    found = measure(args)
    row = getattr(args, "row", None)
    if row:  # of new processes of our own, rank 0's
        if environment.rank_from_env() == 0:
            row.write_text(json.dumps(found))
        return 0
    print(module.show(found))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    if getattr(args, "plot", None):
        args.plot.write_bytes(module.plot(found))
    return 0
