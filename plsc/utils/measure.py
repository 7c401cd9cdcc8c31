"""Measure time and memory of this process.

Timings on a shared machine drift, so variants are measured alternately in one run and compared by the ratio
of their medians. Memory is the peak resident set of the process less its value after Paddle's first
computation, from /proc (Linux).
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
    """Reset the peak, VmHWM, to the present value."""
    Path("/proc/self/clear_refs").write_text("5")


def alternate(runs: int, work: dict) -> dict:
    """Run each function in turn, `runs` times, and return the median seconds of each.

    A float that a function returns scales its time.
    """
    times: dict[object, list[float]] = {name: [] for name in work}
    for _ in range(runs):
        for name, function in work.items():
            began = time.perf_counter()
            factor = function()
            seconds = time.perf_counter() - began
            times[name].append(seconds * (factor if isinstance(factor, float) else 1.0))
    return {name: statistics.median(values) for name, values in times.items()}


def describe_machine() -> dict:
    """Describe the machine: processor, Paddle version, commit (None outside a checkout)."""
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


def format_machine(about: dict) -> str:
    """Format the result of `describe_machine` as one line."""
    return f"{about['processors']} processors {about['machine']}, Paddle {about['paddle']}, commit {about['commit']}"
