"""Take people into a live run, or let some leave it, by a file in its output_dir: join.yaml.

    DataLoader: {Train: {dataset: {list: longer.txt}}}

All ranks take it after the same step. They save that step, and go on in the same processes as a run of the changed
config with Global.init_from, that checkpoint, and Global.keep_step: plsc/training/finetune.py finds the classes by name.
The file is kept as joined/STEP.yaml, by which a run that is started again knows its config. docs/finetune.md explains it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from plsc import distributed
from plsc.checkpoint.class_names import format_names, match_names, refuse_duplicates
from plsc.checkpoint.pieces import step_of
from plsc.config import Config
from plsc.data.dataset import Dataset, class_names
from plsc.errors import UserError, shown
from plsc.utils.atomic_write import remove, replace_file
from plsc.utils.files import read_regular
from plsc.utils.logging import get_logger

FILE = "join.yaml"
REFUSED = "join.refused.yaml"
FOLDER = "joined"  # of the files that were taken
ASKED = 1  # in the place of a signal's number: less than any that stops a run
_KEYS = (("DataLoader",), ("LRScheduler",), ("Global", "epochs"), ("Global", "max_steps"))
_MOST_BYTES = 2**24


class JoinRequests:
    """Looks for join.yaml in the output_dir of a run.

    Args:
        cfg: the config of the run. dataset: what it trains on.
        build_data: builds the data of a config; UserError if these ranks could not go on with it after a step.
    """

    def __init__(self, cfg: Config, dataset: Dataset, build_data: Callable[[Config, int], Dataset]):
        self._cfg = cfg
        self._dataset = dataset
        self._build_data = build_data
        self._file = Path(cfg.Global.output_dir) / FILE

    @property
    def asked(self) -> int:
        """ASKED on rank 0 while there is a join.yaml, else 0; a copy begins as an empty file, which is none yet. Takes microseconds."""
        if distributed.rank() != 0:
            return 0
        try:
            return ASKED if self._file.stat().st_size else 0
        except OSError:
            return 0

    def take(self, step: int) -> Config | None:
        """Return the config with which the run goes on after `step`; None if join.yaml is refused, which is logged, or gone.

        Every rank calls it. A file that is refused is renamed to join.refused.yaml.
        """
        text = distributed.run_on_rank_0(lambda: self._accept(step))
        return None if text is None else _joined(self._cfg, text, step)

    def _accept(self, step: int) -> str | None:
        """Check join.yaml and move it to joined/ -> its text."""
        if not self._file.exists():
            return None
        try:
            text = read_regular(self._file, _MOST_BYTES).decode("utf-8-sig")
            line = self._check(text, step)
            folder = self._file.parent / FOLDER
            folder.mkdir(exist_ok=True)
            # After a kill between these two the run has taken it, and finds that nobody joins by it.
            replace_file(folder / f"{step:08d}.yaml", text.encode())
            self._file.unlink()
        except Exception as error:  # noqa: BLE001 (a user's own data set may raise anything)
            kind = "" if isinstance(error, (UserError, OSError)) else f"{type(error).__name__}: "
            why = shown(kind + "; ".join(str(error).splitlines()))
            refused = self._file.with_name(REFUSED)
            remove(refused)
            with contextlib.suppress(FileNotFoundError):  # its owner has just removed it
                os.replace(self._file, refused)
            get_logger().error(f"{FILE} is refused, and is {REFUSED} now; the run goes on without it: {why}")
            return None
        get_logger().info(f"{FILE} after step {step}: {line}")
        return text

    def _check(self, text: str, step: int) -> str:
        """Check that the run can go on with the file after `step` -> who joins and who leaves; UserError if not."""
        if step <= (last := last_join(self._cfg)):  # it was killed before it had saved that step
            raise UserError(
                f"people have joined after step {last} already, and the run was started again from an earlier one; ask again after step {last}"
            )
        cfg = self._cfg.overlay(text, FILE, _KEYS)
        cfg.check_data()
        data = self._build_data(cfg, step)
        if differences := data.preprocessing.differences(self._dataset.preprocessing):
            what, value, other = differences[0]
            raise UserError(f"its samples have {what} {value}, those of the run {other}; they must be alike")
        before, after = class_names(self._dataset), class_names(data)
        if before is None or after is None:
            raise UserError("the classes have no names, by which they are found again")
        for names, whose in ((before, "the run's data"), (after, "the new data")):
            refuse_duplicates(names, whose)
        rows, leave = match_names(before, after)
        join = [name for name, row in zip(after, rows.tolist()) if row < 0]
        if not join and not leave:
            raise UserError(
                f"its data have the same {len(after):,} classes as the run's: nobody joins or leaves"
            )
        parts = ((join, "join"), (leave, "leave"))
        return "; ".join(f"{len(names):,} {verb} ({format_names(names)})" for names, verb in parts if names)


def _joined(cfg: Config, text: str, step: int) -> Config:
    """Return the config of the run that goes on after `step` with the classes of a join.yaml."""
    start = {
        "Global.init_from": f"{cfg.Global.output_dir}/checkpoints/step-{step:08d}",
        "Global.keep_step": True,
        "Global.keep_centres": None,
        "Global.new_centres": None,
    }
    return cfg.overlay(text, FILE, _KEYS).edit(start, FILE)


def with_joined(cfg: Config) -> Config:
    """Return the config of a run that is started again, with all that has joined it."""
    for path in _taken(cfg):
        cfg = _joined(cfg, read_regular(path, _MOST_BYTES).decode("utf-8-sig"), int(path.stem))
    return cfg


def is_before_join(cfg: Config, checkpoint: Path) -> bool:
    """Say whether a checkpoint of the run was saved before its last join, with the classes of then."""
    step = step_of(checkpoint.name)
    return step is not None and step <= last_join(cfg)


def last_join(cfg: Config) -> int:
    """Return the step after which people joined or left the run last; -1: none did."""
    return max((int(path.stem) for path in _taken(cfg)), default=-1)


def _taken(cfg: Config) -> list[Path]:
    """List the files that the run has taken, in the order of their steps."""
    return sorted((Path(cfg.Global.output_dir) / FOLDER).glob(f"{8 * '[0-9]'}.yaml"))
