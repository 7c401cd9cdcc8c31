"""Run `plsc serve`, and export the checkpoint for it where the run has no export: an app imports no other
app."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from plsc.apps.serving.service import command
from plsc.config import Config
from plsc.distributed.environment import CPU


def main(argv: Sequence[str] | None = None) -> int:
    """Run `plsc serve`. Raises UserError."""
    return command.main(argv, export)


def export(cfg: Config, folder: Path) -> None:
    """Export the checkpoint that the config names to a folder, on the CPU."""
    from plsc.entry import Entry  # imports Paddle

    Entry(cfg.edit({"Global.device": CPU}, "plsc serve")).export(folder)
