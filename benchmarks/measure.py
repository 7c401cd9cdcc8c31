"""Measure time and memory of this process.

Timings on a shared machine drift, so variants are measured alternately in one run and compared by the ratio
of their medians. Memory is the peak resident set of the process less its value after Paddle's first
computation, from /proc (Linux); of a device that Paddle computes on, Paddle tells it. A device works on
while Python goes ahead: who times it waits for it before each look at the clock.
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
    """Reset the peak of this process's resident memory to the present value."""
    Path("/proc/self/clear_refs").write_text("5")


def _device() -> Any:
    """Return Paddle's module that tells the memory of the device in use; None on a CPU."""
    import paddle  # here, since it has to find its environment prepared

    from plsc.distributed import device

    if not device.on_device():
        return None
    # Paddle 2.6 tells the memory of GPUs alone.
    return paddle.device if hasattr(paddle.device, "memory_allocated") else paddle.device.cuda


def finish() -> None:
    """Wait until the device has finished its work; a CPU always has."""
    if device := _device():
        device.synchronize()


def used_bytes() -> int:
    """Read the memory that is in use now: of the device's tensors, on a CPU of this process."""
    device = _device()
    return device.memory_allocated() if device else resident_bytes()


def peak_bytes() -> int:
    """Read the most memory that was in use since `reset_peak`; see `used_bytes`."""
    device = _device()
    return device.max_memory_allocated() if device else resident_bytes("VmHWM")


def reset_peak() -> None:
    """Reset the peak to the present value. On a device Paddle 2.6 cannot: there it stays that of the whole
    process."""
    device = _device()
    if device is None:
        reset_resident_peak()
    elif hasattr(device, "reset_max_memory_allocated"):
        device.reset_max_memory_allocated()


def alternate(runs: int, work: dict, finish: Callable[[], object] = lambda: None) -> dict:
    """Run each function in turn, `runs` times, and return the median seconds of each.

    A float that a function returns scales its time. `finish` waits for the device.
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


def processor() -> str:
    """Return the system's name of the processor; "unknown" where it has none."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), "unknown")


def commit() -> str | None:
    """Return the commit that this plsc is of, "-dirty" if its files were changed; None outside a checkout."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(git, check=False, capture_output=True, text=True).stdout.strip() or None
    except FileNotFoundError:
        return None
