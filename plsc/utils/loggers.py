"""Copy the numbers of a run to VisualDL, TensorBoard and Weights & Biases (Global.loggers).

Each backend is a class with the same three parts: `continues`, `write` and `close`. Its package is imported
when it is made. Everything is written under the run's folder, and nothing goes over a network unless the
user's environment says so (WANDB_MODE=online). plsc.utils.metrics decides what is
written.

Try it: `pytest tests/utils/test_loggers.py`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from plsc.errors import UserError
from plsc.utils.atomic_write import replace_file


class Logger(Protocol):
    """A copy of a run's numbers. It is made with the run's folder, in which it has a folder of its own name.

    Attributes: `continues`, whether an earlier process of the same run has written to it.
    """

    continues: bool

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Write numbers by name, such as "train/loss", of a step. The steps of a name only rise."""

    def close(self) -> None:
        """Write what is left, and end."""


class VisualDL:
    """Writes <folder>/visualdl, one file, which a resumed run appends to."""

    def __init__(self, folder: Path):
        records = folder / "visualdl" / "vdlrecords.train.log"
        self.continues = records.exists()
        with contextlib.redirect_stdout(io.StringIO()):  # it prints a greeting
            from visualdl import LogWriter

            # A fixed name: with a second file in the folder, VisualDL would show only the newest.
            self._writer = LogWriter(str(records.parent), file_name=records.name)

    def write(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(tag=name, value=value, step=step)

    def close(self) -> None:
        self._writer.close()


class TensorBoard:
    """Writes <folder>/tensorboard, a file for each start, which TensorBoard shows as one run."""

    def __init__(self, folder: Path):
        from tensorboardX import SummaryWriter

        place = folder / "tensorboard"
        self.continues = place.exists()
        count = len(
            list(place.glob("events.*"))
        )  # in the name: starts in one second would overwrite each other
        self._writer = SummaryWriter(str(place), filename_suffix=f".{count}")

    def write(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # else a killed process loses two minutes

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """Writes <folder>/wandb, offline: a folder for each start, all of one run id, for `wandb sync --append`.

    The user's WANDB_MODE, WANDB_PROJECT, WANDB_NAME, WANDB_RUN_ID and WANDB_DIR hold.
    """

    def __init__(self, folder: Path):
        import wandb

        run_id, self.continues = _kept_id(folder / "wandb" / "plsc-run-id", os.environ.get("WANDB_RUN_ID"))
        given = {"mode": "offline", "project": "plsc", "name": folder.resolve().name, "dir": str(folder)}
        given = {key: value for key, value in given.items() if f"WANDB_{key.upper()}" not in os.environ}
        self._run = wandb.init(
            id=run_id,
            resume=None if os.environ.get("WANDB_MODE", "offline") == "offline" else "allow",
            settings=wandb.Settings(silent=True, console="off", disable_git=True),
            **given,
        )

    def write(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


def _kept_id(file: Path, given: str | None) -> tuple[str, bool]:
    """Read the run id in `file`, or write a new one, `given` if that is not None; -> id, whether it was
    there."""
    if file.is_file():
        return given or file.read_text(), True
    file.parent.mkdir(parents=True, exist_ok=True)
    run_id = given or secrets.token_hex(4)
    replace_file(file, run_id.encode())
    return run_id, False


LOGGERS = {"visualdl": VisualDL, "tensorboard": TensorBoard, "wandb": Wandb}
_PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb"}


def check_packages(names: Iterable[str]) -> None:
    """Raise UserError if the package of a logger is not installed. VisualDL comes with plsc, and a run goes
    on without it."""
    for name in names:
        package = _PACKAGES.get(name)
        if package and importlib.util.find_spec(package) is None:
            raise UserError(
                f"Global.loggers: {name} needs a package that is not installed: pip install {package}, or leave {name} out"
            )
