"""Prepare a command for a config: set up this process, and open the checkpoint that the config names.

`start` imports Paddle after it has set the environment variables that Paddle reads. Modules that import
Paddle must be imported after that.

Try it: `start(cfg.Global)`, then `open_checkpoint(cfg.Global)`, for a finished run's config.
"""

import contextlib
import os
from pathlib import Path

from plsc.checkpoint import store
from plsc.checkpoint.evaluation import Evaluation
from plsc.config import Config, load
from plsc.config.run import GlobalCfg
from plsc.distributed import environment, lock
from plsc.errors import MissingFileError, Mistakes, UserError, escape, writing
from plsc.training.loggers import check_packages
from plsc.utils.atomic_write import remove, replace_file
from plsc.utils.files import read_json
from plsc.utils.logging import get_logger, setup_logging
from plsc.utils.yaml_lines import dump_lines

# The files and folders that a training run writes to Global.output_dir.
RUN_FILES = (
    *("config.yaml", "metrics.jsonl", "train.log", "checkpoints"),
    *("visualdl", "tensorboard", "wandb"),
    *("report.html", "results.json"),
)
# The data sets' keys that name a folder with a folder for each class.
_OF_FOLDERS = frozenset({"folder", "images", "gallery", "probe"})
# The files that plsc eval and plsc predict write there by default. A folder `test` may also be the user's.
_LATER_FILES = {
    "test": ("report.html", "results.json"),
    "predict": ("embeddings.npy", "names.txt", "classes.csv"),
}


def start(section: GlobalCfg, problem: UserError | None = None) -> int:
    """Set up the environment, the ranks and the log.

    Args:
        section: the config's section Global.
        problem: error that this rank has found, or None. All ranks raise it.

    Returns the thread count for this rank's matrix products.
    """
    threads = environment.prepare(section.threads, section.device)
    from plsc import distributed

    distributed.init(section.device, threads, section.hang_seconds, problem)
    setup_logging(distributed.rank())
    return threads


def check_start(cfg: Config, ranks: int) -> bool:
    """Check what can be known before anything is written, and return whether the training resumes a run.

    ranks: number of ranks of the training.

    Raises UserError with all mistakes: too many ranks for the global batch, missing data, a logger's missing
    package, and what `should_resume` raises.
    """
    mistakes, resumes = Mistakes(), False
    with mistakes.collected():
        cfg.check_ranks(ranks)
    with mistakes.collected():
        cfg.check_data()
    with mistakes.collected():
        check_packages(cfg.Global.loggers)
    with mistakes.collected():
        _check_folders(cfg)
    with mistakes.collected():
        resumes = should_resume(cfg.Global)
    mistakes.raise_all()
    return resumes


def _check_folders(cfg: Config) -> None:
    """Raise UserError if the run could not be used later: if its config.yaml cannot name its folders, or if
    the output folder would be read as a class of images."""
    for folder in cfg.folders:
        try:
            folder.encode()
        except UnicodeEncodeError:
            text = f"{escape(folder)}: its name is not UTF-8; rename it, or start in another folder"
            raise UserError(text) from None
    output = Path(cfg.Global.output_dir).resolve()
    for name, section in cfg.DataLoader.sets().items():
        of_folders = _OF_FOLDERS.intersection(section.model_extra if ":" not in section.name else ())
        for key in sorted(of_folders):
            images = Path(section.model_extra[key]).resolve()
            if images.is_dir() and images in (output, *output.parents):
                raise UserError(
                    f"{escape(output)} is within {name}.{key}, whose folders are classes, so the run's "
                    "would be read as classes, too; name another folder",
                    key="Global.output_dir",
                )


def should_resume(section: GlobalCfg) -> bool:
    """Return whether a training resumes the run in its output folder.

    It resumes an unfinished run, unless Global.overwrite is set. With Global.resume it resumes any run.

    Raises UserError before the ranks start:
    - if the folder has a finished run, and Global.overwrite does not allow its deletion
    - if Global.checkpoint names a checkpoint that a new run would not read
    - if Global.init_from has no checkpoint, or lies in the run that would be deleted
    - if the folder has another program's files that a new run would delete
    """
    folder = Path(section.output_dir)
    if section.resume:
        return True
    saved = list((folder / "checkpoints").glob("step-*"))  # damaged ones, too
    if saved and not section.overwrite:
        newest = store.newest_step(folder / "checkpoints")
        try:  # written after the last checkpoint
            ended = read_json(folder / "results.json")["step"]
        except (UserError, TypeError, KeyError):  # missing or damaged: the resumed run writes it again
            return True
        if ended == newest:
            raise UserError(
                f"{folder} contains a finished run, step {newest:,}; name another folder, or set "
                "Global.overwrite=true to delete that run, or Global.resume=true to train it for more epochs",
                key="Global.output_dir",
            )
        return True
    if section.checkpoint not in (None, "newest", "best"):
        raise UserError(
            f"a new training would not read {section.checkpoint}; set Global.resume=true to resume from "
            "it, or Global.init_from to start a new run with its weights",
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
            f"{there} is in the run that would be deleted (Global.overwrite); name another output folder",
            key="Global.init_from",
        )
    theirs = [name for name in RUN_FILES if os.path.lexists(folder / name)]
    if theirs and not saved and not (folder / lock.FILE).exists():
        raise UserError(
            f"{folder} has {', '.join(theirs)}, which no run wrote and a new run would delete; name "
            "another folder",
            key="Global.output_dir",
        )
    return False


def how_to_resume(section: GlobalCfg) -> str:
    """Return a sentence that says which command resumes the stopped run."""
    back = section.resume and section.checkpoint not in (None, "newest")
    once = "overwrite" if section.overwrite else "checkpoint" if back else ""
    return f"rerun the same command {f'without Global.{once} ' if once else ''}to resume"


def write_config(cfg: Config) -> None:
    """Write config.yaml into the run's folder. It records the folders with the run's data and modules.

    Keys that apply to one start are reset. So a command with `-c` and that folder deletes no run, and does
    not return to an earlier checkpoint.
    """
    once = {"Global.overwrite": False, "Global.resume": False}
    if cfg.Global.resume:
        once["Global.checkpoint"] = None
    written = load(cfg, once).plain()
    written["Global"]["folders"] = cfg.folders
    replace_file(Path(cfg.Global.output_dir, "config.yaml"), dump_lines(written).encode())


def delete_run(folder: Path) -> None:
    """Delete an earlier run's files from an output folder. Keep all other files, also in its subfolders."""
    had_checkpoints = (folder / "checkpoints").is_dir()
    with writing(folder):
        for name in RUN_FILES:
            remove(folder / name)
        if not had_checkpoints:
            return
        if (folder / "export/preprocessing.json").is_file():  # plsc export writes no folder with other files
            remove(folder / "export")
        for name, files in _LATER_FILES.items():
            for file in files:
                if os.path.lexists(folder / name / file):
                    remove(folder / name / file)
            with contextlib.suppress(OSError):  # missing, not a folder, or with the user's own files
                (folder / name).rmdir()


def locate_checkpoint(section: GlobalCfg, writes: bool = False) -> Path | None:
    """Find the checkpoint that Global.checkpoint names, and log its path. Rank 0 alone calls it, because it
    verifies every byte.

    If the key is not set, the newest checkpoint is used. A second line then names the best one, if that had a
    better evaluation.

    Args:
        section: the config's section Global.
        writes: whether this run writes to the folder. If so, it sets damaged checkpoints aside.

    Returns the checkpoint's path, or None if the newest is asked for and no checkpoint exists.
    """
    name = section.checkpoint or "newest"
    if writes and name == "best" and not section.resume:  # resumes a stopped run. best is for evaluations
        name = "newest"
    path = store.find(Path(section.output_dir) / "checkpoints", name, rename=writes)
    if path:
        how = f" ({name})" if name in ("newest", "best") else ""
        get_logger().info(f"reading checkpoint {path}{how}")
        if section.checkpoint is None and not writes:
            _name_the_best(path)
    elif writes:
        get_logger().info(f"nothing to resume in {section.output_dir}, starting at step 0")
    return path


def _name_the_best(newest: Path) -> None:
    """Log which checkpoint beside the newest one had a better evaluation, if there is one."""
    path = store.best(newest.parent)
    best, own = path and Evaluation.read(path), Evaluation.read(newest)
    if not best or path == newest or (own and own.value == best.value):
        return
    here = f", {newest.name} {own.value:.4f}" if own and own.value is not None else ""
    get_logger().info(
        f"{path.name} has the best {best.metric} on {best.set}: {best.value:.4f}{here}; set "
        "Global.checkpoint=best to use it"
    )


def find_checkpoint(section: GlobalCfg) -> Path | None:
    """Call `locate_checkpoint` on rank 0, and return its result on every rank. Every rank calls it."""
    from plsc import distributed

    return distributed.run_on_rank_0(lambda: locate_checkpoint(section))


def open_checkpoint(section: GlobalCfg) -> store.Checkpoint:
    """Open the checkpoint that Global.checkpoint names. Every rank calls it.

    By default this is the newest checkpoint in Global.output_dir.

    Raises MissingFileError if no checkpoint exists.
    """
    path = find_checkpoint(section)
    if path is None:
        raise MissingFileError(
            f"{section.output_dir}/checkpoints: no checkpoint there; train first, or name the run's "
            "folder by -c"
        )
    return store.Checkpoint.open(path, verify=False)
