"""Describe the machine on which numbers were measured."""

from __future__ import annotations

import os
from importlib import metadata

from benchmarks.measure import commit, processor


def describe_machine() -> dict:
    """Return the machine's processor, how many processors it has, Paddle's version and plsc's commit.

    The commit is None outside a checkout.
    """
    packages = {each.metadata["Name"]: each.version for each in metadata.distributions()}
    return {
        "machine": processor(),
        "processors": os.cpu_count(),
        "paddle": next((v for name, v in packages.items() if (name or "").startswith("paddlepaddle")), None),
        "commit": commit(),
    }


def format_machine(about: dict) -> str:
    """Format `describe_machine`'s result as one line."""
    where = f"{about['processors']} processors {about['machine']}"
    return f"{where}, Paddle {about['paddle']}, commit {about['commit']}"
