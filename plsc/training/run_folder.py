"""Begin a verb on a config: set up this process, and open the checkpoint that the config names.

Paddle is imported by `start`, when the environment is set for it. What imports it too is imported after that.
"""

import os
from pathlib import Path

from plsc.checkpoint import store
from plsc.config import Config, load
from plsc.config.run import GlobalCfg
from plsc.distributed import environment, lock
from plsc.errors import MissingFileError, UserError, writing
from plsc.utils.atomic_write import remove, replace_file
from plsc.utils.files import read_json
from plsc.utils.logging import get_logger, setup_logging
from plsc.utils.yaml_lines import dump_lines

# What a training run leaves in Global.output_dir.
RUN_FILES = (
    *("config.yaml", "metrics.jsonl", "train.log", "checkpoints"),
    *("visualdl", "tensorboard", "wandb"),
    *("report.html", "results.json"),
)
_OF_CHECKPOINTS = ("export", "test", "predict")  # made later, from those


def start(section: GlobalCfg, problem: UserError | None = None) -> int:
    """Set up environment, ranks and log; return the threads of this rank's matrix products.

    problem: a mistake that this rank has found; all ranks raise it.
    """
    threads = environment.prepare(section.threads, section.device)
    from plsc import distributed

    distributed.init(section.device, threads, section.hang_seconds, problem)
    setup_logging(distributed.rank())
    return threads


def should_resume(section: GlobalCfg) -> bool:
    """Say whether a training goes on with what is in its output folder: a run that is not at its end, or any
    where Global.resume is set.

    UserError, before ranks start, for a run at its end unless Global.overwrite allows to delete it, for
    another program's files in its place, and for weights to start with that are not there.
    """
    folder = Path(section.output_dir)
    if section.resume:
        return True
    saved = list((folder / "checkpoints").glob("step-*"))  # damaged ones, too
    if saved and not section.overwrite:
        newest = store.newest_step(folder / "checkpoints")
        try:  # written after the last checkpoint
            ended = read_json(folder / "results.json")["step"]
        except (UserError, TypeError, KeyError):  # not there, or damaged: it is written anew
            return True
        if ended == newest:
            raise UserError(
                f"{folder} has a run that is at its end, step {newest:,}; name another folder, or set "
                "Global.overwrite=true to delete that run, or Global.resume=true to go on with it for more "
                "epochs",
                key="Global.output_dir",
            )
        return True
    if section.checkpoint not in (None, "newest", "best"):
        raise UserError(
            f"training starts anew and would not read {section.checkpoint}; set Global.resume=true to go on "
            "from it, or Global.init_from to begin a new run with its weights",
            key="Global.checkpoint",
        )
    there = Path(section.init_from or folder)
    if section.init_from and not (
        (there / "manifest.json").is_file() or any(map(store.completed, (there, there / "checkpoints")))
    ):
        raise MissingFileError(
            f"{there}: has no checkpoint; name the folder of a run or of one",
            key="Global.init_from",
        )
    if section.init_from and folder.resolve() in (there.resolve(), *there.resolve().parents):
        raise UserError(
            f"{there} lies in the run that is deleted (Global.overwrite); name another output folder",
            key="Global.init_from",
        )
    theirs = [name for name in RUN_FILES if os.path.lexists(folder / name)]
    if theirs and not saved and not (folder / lock.FILE).exists():
        raise UserError(
            f"{folder} has {', '.join(theirs)}, which no run wrote and a new one would delete; name another "
            "folder",
            key="Global.output_dir",
        )
    return False


def how_to_resume(section: GlobalCfg) -> str:
    """Say which command goes on with a run that is stopped."""
    back = section.resume and section.checkpoint not in (None, "newest")
    once = "overwrite" if section.overwrite else "checkpoint" if back else ""
    return f"the same command {f'without Global.{once} ' if once else ''}goes on"


def write_config(cfg: Config) -> None:
    """Write config.yaml into the run's folder, with the folders of its data and modules.

    Keys that hold once are reset: `-c` of that folder deletes no run, and goes back to no checkpoint.
    """
    once = {"Global.overwrite": False, "Global.resume": False}
    if cfg.Global.resume:
        once["Global.checkpoint"] = None
    written = load(cfg, once).plain()
    written["Global"]["folders"] = cfg.folders
    replace_file(Path(cfg.Global.output_dir, "config.yaml"), dump_lines(written).encode())


def delete_run(folder: Path) -> None:
    """Delete what an earlier run has left in an output folder."""
    later = _OF_CHECKPOINTS if (folder / "checkpoints").is_dir() else ()
    with writing(folder):
        for name in (*RUN_FILES, *later):
            remove(folder / name)


def find_newest(section: GlobalCfg, writes: bool = False) -> Path | None:
    """Find the checkpoint that Global.checkpoint names, and log it; None if that is the newest and there is
    none. Rank 0 calls it, since every byte is verified.

    writes: this run writes there, and sets damaged ones aside.
    """
    name = section.checkpoint or "newest"
    if writes and name == "best" and not section.resume:  # of a run that was stopped; best is for evaluations
        name = "newest"
    path = store.find(Path(section.output_dir) / "checkpoints", name, rename=writes)
    if path:
        how = f" ({name})" if name in ("newest", "best") else ""
        get_logger().info(f"reading checkpoint {path}{how}")
    elif writes:
        get_logger().info(f"nothing to resume in {section.output_dir}, starting at step 0")
    return path


def find_checkpoint(section: GlobalCfg) -> Path | None:
    """Find the checkpoint of `find_newest` on rank 0, for all. Every rank calls it."""
    from plsc import distributed

    return distributed.run_on_rank_0(lambda: find_newest(section))


def open_checkpoint(section: GlobalCfg) -> store.Checkpoint:
    """Open the checkpoint that Global.checkpoint names, by default the newest in Global.output_dir. Every
    rank calls it.

    Raises MissingFileError if there is none.
    """
    path = find_checkpoint(section)
    if path is None:
        raise MissingFileError(
            f"{section.output_dir}/checkpoints: no checkpoint there; train first, or name the run's "
            "folder by -c"
        )
    return store.Checkpoint.open(path, verify=False)
