"""Copy the numbers of a run to VisualDL, TensorBoard and Weights & Biases (Global.loggers).

Each has a folder of its own name in the run's, and its package is imported when it is made. Nothing goes over
a network unless the user's environment says so (WANDB_MODE=online).
"""

import contextlib
import importlib.util
import io
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from plsc.errors import UserError
from plsc.utils.atomic_write import replace_file
from plsc.utils.files import temporary_home


class VisualDL:
    """Writes <folder>/visualdl, one file, which a resumed run appends to."""

    def __init__(self, folder: Path):
        with contextlib.redirect_stdout(io.StringIO()), temporary_home():  # it prints a greeting
            from visualdl import LogWriter

            # A fixed name: with a second file in the folder, VisualDL would show only the newest.
            self._writer = LogWriter(str(folder / "visualdl"), file_name="vdlrecords.train.log")

    def write(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # else a killed process loses two minutes

    def close(self) -> None:
        self._writer.close()


class TensorBoard(VisualDL):
    """Writes <folder>/tensorboard, a file for each start, which TensorBoard shows as one run."""

    def __init__(self, folder: Path):
        from tensorboardX import SummaryWriter

        place = folder / "tensorboard"
        # The name has a number, since two starts in one second would overwrite each other.
        self._writer = SummaryWriter(str(place), filename_suffix=f".{len(list(place.glob('events.*')))}")


class Wandb:
    """Writes <folder>/wandb, offline: a folder for each start, all of one run id, for `wandb sync --append`.

    The user's WANDB_MODE, WANDB_PROJECT, WANDB_NAME, WANDB_RUN_ID and WANDB_DIR hold.
    """

    def __init__(self, folder: Path):
        import wandb

        kept = folder / "wandb" / "plsc-run-id"
        if not kept.exists():
            replace_file(kept, secrets.token_hex(4).encode())
        given = {
            "mode": "offline",
            "project": "plsc",
            "name": folder.resolve().name,
            "dir": str(folder),
            "run_id": kept.read_text(),
        }
        given = {key: os.environ.get(f"WANDB_{key.upper()}", value) for key, value in given.items()}
        self._run = wandb.init(
            id=given.pop("run_id"),
            resume="allow",
            settings=wandb.Settings(silent=True, console="off", disable_git=True),
            **given,
        )

    def write(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


LOGGERS = {"visualdl": VisualDL, "tensorboard": TensorBoard, "wandb": Wandb}
_PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb"}  # VisualDL comes with plsc


def check_packages(names: Iterable[str]) -> None:
    """Raise UserError if the package of a logger is not installed."""
    for name in names:
        package = _PACKAGES.get(name)
        if package and importlib.util.find_spec(package) is None:
            raise UserError(
                f"{name} needs a package that is not installed: pip install {package}, or leave {name} out",
                key="Global.loggers",
            )
