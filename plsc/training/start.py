"""Begin a verb on a config: set up this process, and open the checkpoint that the config names.

Paddle is imported by `start`, when the environment is set for it. What imports it too is imported after that.
"""

from __future__ import annotations

from pathlib import Path

from plsc.checkpoint import store
from plsc.config import Config
from plsc.distributed import environment
from plsc.errors import MissingFileError, UserError, writing
from plsc.utils.atomic_write import remove
from plsc.utils.files import read_json
from plsc.utils.logging import get_logger, setup_logging

# What a training run leaves in Global.output_dir.
RUN_FILES = (
    *("config.yaml", "metrics.jsonl", "train.log", "checkpoints"),
    *("visualdl", "tensorboard", "wandb"),
    *("report.html", "results.json"),
)
_OF_CHECKPOINTS = ("export", "test", "predict")  # made later, from those

START = "Global.init_from"


def start(cfg: Config) -> None:
    """Set up environment, ranks and log."""
    threads = environment.prepare(cfg.Global.threads, cfg.Global.device)
    from plsc import distributed

    distributed.init(cfg.Global.device, threads)
    setup_logging(distributed.rank())


def is_finished(folder: Path) -> bool:
    """Say whether the run in an output folder has written its results after its newest checkpoint."""
    try:
        results = read_json(folder / "results.json")
    except UserError:
        return False
    return isinstance(results, dict) and results.get("step") == store.newest_step(folder / "checkpoints")


def goes_on(cfg: Config) -> bool:
    """Say whether a training goes on with the run in its output folder: one that is not at its end, or any
    where Global.resume is set.

    Raises UserError for a run at its end, unless Global.overwrite allows to delete it.
    """
    folder = Path(cfg.Global.output_dir)
    newest = store.newest_step(folder / "checkpoints")
    if cfg.Global.resume or cfg.Global.overwrite or newest is None:
        return cfg.Global.resume
    if is_finished(folder):
        raise UserError(
            f"{folder} has a run that is at its end, step {newest:,}; name another folder, or set Global."
            "overwrite=true to delete that run, or Global.resume=true to go on with it for more epochs",
            key="Global.output_dir",
        )
    return True


def delete_run(folder: Path) -> None:
    """Delete what an earlier run has left in an output folder, which is made if it is missing."""
    make_folder(folder, "Global.output_dir")
    later = _OF_CHECKPOINTS if (folder / "checkpoints").is_dir() else ()
    with writing(folder):
        for name in (*RUN_FILES, *later):
            remove(folder / name)


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

    Raises MissingFileError if there is none.
    """
    path = find_checkpoint(cfg)
    if path is None:
        folder = Path(cfg.Global.output_dir) / "checkpoints"
        raise MissingFileError(
            f"{folder}: no checkpoint there; train first, or set Global.checkpoint or Global.output_dir"
        )
    return store.Checkpoint.open(path, verify=False)


def find_start(cfg: Config) -> Path:
    """Find the checkpoint that Global.init_from names: the newest of a run, or the folder itself; its bytes
    are not read. MissingFileError if there is none."""
    path = Path(cfg.Global.init_from)
    if (path / "manifest.json").is_file():
        return path
    found = store.completed(path / "checkpoints")
    if not found:
        raise MissingFileError(f"{path}: has no checkpoint; name the folder of a run or of one", key=START)
    return found[-1]


def make_folder(folder: Path, key: str) -> None:
    """Make a folder that `key` names, unless it is there."""
    with writing(f"{key}: {folder}", remedy="name another folder"):
        folder.mkdir(parents=True, exist_ok=True)
