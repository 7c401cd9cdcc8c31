"""Begin a verb on a config: set up this process, and open the checkpoint that the config names.

Paddle is imported by `start`, when the environment is set for it. What imports it too is imported after that.
"""

from __future__ import annotations

from pathlib import Path

from plsc.checkpoint import store
from plsc.config import Config
from plsc.distributed import environment
from plsc.errors import MissingFileError, UserError, writing
from plsc.utils.files import read_json
from plsc.utils.logging import get_logger, setup


def start(cfg: Config) -> None:
    """Set up environment, ranks and log."""
    threads = environment.prepare(cfg.Global.threads, cfg.Global.device)
    from plsc import distributed

    section = cfg.Global
    distributed.init(section.device, threads, tf32=section.tf32, deterministic=section.deterministic)
    setup(distributed.rank())


def is_unfinished(folder: Path) -> bool:
    """Say whether an output folder has a run that has saved, and has not written its results since."""
    newest = store.newest_step(folder / "checkpoints")
    if newest is None:
        return False
    try:
        results = read_json(folder / "results.json")
    except UserError:
        return True
    return not (isinstance(results, dict) and results.get("step") == newest)


def find_checkpoint(cfg: Config, writes: bool = False) -> Path | None:
    """Find the checkpoint that Global.checkpoint names, and log it; None if that is the newest and there is
    none. Every rank calls it.

    writes: this run writes there, and sets damaged ones aside.
    """
    from plsc import distributed

    name = cfg.Global.checkpoint or "newest"
    folder = Path(cfg.Global.output_dir) / "checkpoints"
    # It verifies every byte and sets damaged ones aside: once is enough.
    path = distributed.run_on_rank_0(lambda: store.find(folder, name, rename=writes))
    if path:
        how = f" ({name})" if name in ("newest", "best") else ""
        get_logger().info(f"reading checkpoint {path}{how}")
    elif writes:
        get_logger().info(f"nothing to resume in {cfg.Global.output_dir}, starting at step 0")
    return path


def open_checkpoint(cfg: Config) -> store.Checkpoint:
    """Open the checkpoint that Global.checkpoint names, by default the newest in Global.output_dir. Every
    rank calls it.

    Raises MissingFileError if there is none, UserError for one without a preprocessing.
    """
    path = find_checkpoint(cfg)
    if path is None:
        folder = Path(cfg.Global.output_dir) / "checkpoints"
        raise MissingFileError(
            f"{folder}: no checkpoint there; train first, or set Global.checkpoint or Global.output_dir"
        )
    saved = store.Checkpoint.open(path, verify=False)
    saved.require("preprocessing", "shape", "dtype", "mean", "scale")
    return saved


def make_folder(folder: Path, key: str) -> None:
    """Make a folder that `key` names, unless it is there."""
    with writing(f"{key}: {folder}", remedy="name another folder"):
        folder.mkdir(parents=True, exist_ok=True)
