"""Find the run of a config.yaml: a run is where its config.yaml lies, also after it was moved or copied.

key_of(Path("output/first"))   # "output_dir"
"""

from __future__ import annotations

from pathlib import Path

CONFIG = "config.yaml"  # the resolved config that a run, or plsc import, writes beside its checkpoints


def key_of(folder: Path) -> str | None:
    """Return the key of Global that means a folder: output_dir of a run, checkpoint of imported weights, None
    of another."""
    if not (folder / CONFIG).is_file():
        return None
    if (folder / "manifest.json").is_file():
        return "checkpoint"
    if (folder / "metrics.jsonl").is_file() or any(folder.glob("checkpoints/step-*")):
        return "output_dir"
    return None


def config_file(path: Path) -> Path:
    """Return the file that a path means as a config: of a folder its default.yaml, or else, as of a run's,
    its config.yaml."""
    if not path.is_dir():
        return path
    default = path / "default.yaml"
    return default if default.exists() or not (path / CONFIG).exists() else path / CONFIG
