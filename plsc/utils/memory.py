"""Refuse what the machine has no memory for, before it is allocated.

Try it: `python -c "from plsc.utils.memory import refuse_beyond_memory; refuse_beyond_memory(10**18, 'it',
'lower it')"`.
"""

from __future__ import annotations

from pathlib import Path

from plsc.errors import UserError


def available_bytes() -> int:
    """Return the bytes of memory that programs of this machine can still get (Linux)."""
    line = next(
        line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")
    )
    return int(line.split()[1]) * 1024


def refuse_beyond_memory(need: float, what: str, remedy: str, key: str = "") -> None:
    """Raise UserError if `what`, of `need` bytes, is more than this machine has free, before anything is
    allocated. key: of the config, that it is about."""
    free = available_bytes()
    if need > free:
        raise UserError(
            f"{what} would take {need / 1e9:,.3g} GB of memory, this machine has {free / 1e9:.3g} GB free; "
            f"{remedy}",
            key=key,
        )
