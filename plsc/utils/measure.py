"""Measure time and memory of this process.

Timings on a shared machine drift, so what is compared is measured alternately in one run and given as a ratio of medians. Memory
is the process's peak resident set above what it was once Paddle had computed something, from /proc (Linux).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from importlib import metadata
from pathlib import Path


def resident_bytes(field: str = "VmRSS") -> int:
    """Read this process's resident memory now ("VmRSS") or at its peak ("VmHWM"), in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def reset_peak() -> None:
    """Start VmHWM, the peak, again from the present."""
    Path("/proc/self/clear_refs").write_text("5")


def alternate(runs: int, work: dict) -> dict:
    """Run each function in turn, `runs` times; returns the median seconds of each. A number that a function returns scales its time."""
    times: dict[object, list[float]] = {name: [] for name in work}
    for _ in range(runs):
        for name, function in work.items():
            began = time.perf_counter()
            factor = function()
            seconds = time.perf_counter() - began
            times[name].append(seconds * (factor if isinstance(factor, float) else 1.0))
    return {name: statistics.median(values) for name, values in times.items()}


def describe_machine() -> dict:
    """Collect what a measured number depends on besides the command: processor, Paddle, commit (None outside a checkout)."""
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


def format_machine(found: dict) -> str:
    """Format what `describe_machine` returned as one line."""
    return f"{found['processors']} processors {found['machine']}, Paddle {found['paddle']}, commit {found['commit']}"
