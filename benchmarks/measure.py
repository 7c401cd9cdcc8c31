"""Measure this process's time and memory.

Timings on a shared machine drift. Variants therefore take turns in one run, and their medians' ratios are
compared. Memory is the process's peak resident set minus its value after Paddle's first computation, from
/proc (Linux). If Paddle computes on a device, Paddle reports that device's memory. A device computes
asynchronously, so `finish` is called before each reading of the clock.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def resident_bytes(field: str = "VmRSS") -> int:
    """Read this process's resident memory now ("VmRSS") or at its peak ("VmHWM"), in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def reset_resident_peak() -> None:
    """Reset this process's peak resident memory to the current value."""
    Path("/proc/self/clear_refs").write_text("5")


def _device() -> Any:
    """Return Paddle's module that reports the current device's memory, or None on a CPU."""
    import paddle  # here, since its environment must be prepared first

    from plsc.distributed import device

    if not device.on_device():
        return None
    # Paddle 2.6 reports only GPUs' memory.
    return paddle.device if hasattr(paddle.device, "memory_allocated") else paddle.device.cuda


def finish() -> None:
    """Wait until the device has finished its work. On a CPU there is nothing to wait for."""
    if device := _device():
        device.synchronize()


def used_bytes() -> int:
    """Return the memory in use now, in bytes: the device tensors', or on a CPU this process's."""
    device = _device()
    return device.memory_allocated() if device else resident_bytes()


def peak_bytes() -> int:
    """Return the largest memory that was in use since `reset_peak`, in bytes. See `used_bytes`."""
    device = _device()
    return device.max_memory_allocated() if device else resident_bytes("VmHWM")


def reset_peak() -> None:
    """Reset the peak to the current value.

    Paddle 2.6 cannot do this on a device. The peak then remains the whole process's.
    """
    device = _device()
    if device is None:
        reset_resident_peak()
    elif hasattr(device, "reset_max_memory_allocated"):
        device.reset_max_memory_allocated()


def alternate(runs: int, work: dict, finish: Callable[[], object] = lambda: None) -> dict:
    """Run each function in turn, `runs` times, and return the median seconds of each.

    Args:
        runs: runs per function.
        work: functions by name. If a function returns a float, its time is multiplied by it.
        finish: waits until the device has finished its work.
    """
    times: dict[object, list[float]] = {name: [] for name in work}
    for _ in range(runs):
        for name, function in work.items():
            finish()
            began = time.perf_counter()
            factor = function()
            finish()
            seconds = time.perf_counter() - began
            times[name].append(seconds * (factor if isinstance(factor, float) else 1.0))
    return {name: statistics.median(values) for name, values in times.items()}


def from_clone(clone: str, code: str) -> str:
    """Return code that imports from a clone when `python -c` runs it. Python would import from the current
    folder first."""
    return f"import sys; sys.path[0] = {clone!r}\n{code}"


def processor() -> str:
    """Return the system's name for the processor, or "unknown"."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), "unknown")


def commit() -> str | None:
    """Return the commit of this plsc, or None outside a checkout. "-dirty" is appended if files were
    changed."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(git, check=False, capture_output=True, text=True).stdout.strip() or None
    except FileNotFoundError:
        return None
