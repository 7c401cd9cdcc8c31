"""Read the switch of the compiled kernels (plsc/native): PLSC_KERNELS=0 turns them off."""

from __future__ import annotations

import os


def turned_off() -> bool:
    """Say whether the user has turned the kernels off."""
    return os.environ.get("PLSC_KERNELS") == "0"
